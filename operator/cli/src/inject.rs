//! `headgate inject` and `headgate uninject`: add an Envoy with a Headgate slot to the Pods of
//! workloads, and remove it.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use serde_json::Value;

use crate::input::text_of;
use headgate_command::output::{Output, document};
use headgate_command::table::one_line;
use headgate_controller::inject::{self, INJECTED_ANNOTATION, Injected, Outcome, Settings};

/// Adds an Envoy with a Headgate slot to the Pods of Deployments, StatefulSets, DaemonSets,
/// ReplicaSets and Pods, and prints them with all other objects: `headgate inject app.yaml |
/// kubectl apply -f -`. Services in the same input that point at the application's port by number
/// then point at Envoy. The additions of an earlier injection are replaced
#[derive(Debug, Clone, Args)]
pub(crate) struct InjectArgs {
    /// Files with Kubernetes objects, or - for standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// Removes the additions of `headgate inject` from objects, and prints them with all others:
/// `kubectl get deployment,service -o yaml | headgate uninject | kubectl apply -f -`
#[derive(Debug, Clone, Args)]
pub(crate) struct UninjectArgs {
    /// Files with Kubernetes objects, or - for standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) files: Vec<PathBuf>,
}

/// Prints the objects.
///
/// # Errors
/// Returns one line that names the object at fault and the remedy.
pub(crate) fn run(args: &InjectArgs) -> anyhow::Result<Output> {
    let mut objects = read(&args.files)?;
    let (mut injected, mut notes) = (Vec::new(), String::new());
    for object in &mut objects {
        match inject::inject(object, &args.settings) {
            Ok(Outcome::Injected(one)) => injected.push(one),
            Ok(Outcome::Skipped(why)) => writeln!(notes, "warning: {why}")?,
            Ok(Outcome::NoWorkload) => {}
            Err(problem) => bail!(problem),
        }
    }
    if injected.is_empty() && notes.is_empty() {
        bail!("no workload in the input: a Deployment, StatefulSet, DaemonSet, ReplicaSet or Pod");
    }
    for object in &mut objects {
        inject::reset(object, &injected).map_err(|problem| anyhow!(problem))?;
    }
    for one in &injected {
        if let Some(warning) = &one.host_port {
            writeln!(notes, "warning: {warning}")?;
        }
        let mut is_reached = one.took_name;
        for object in &mut objects {
            let reaches = inject::redirect(object, one).map_err(|problem| anyhow!(problem))?;
            is_reached |= reaches;
            let headless = reaches.then(|| inject::bypassed(object, one)).flatten();
            for warning in headless.into_iter().chain(inject::cut_off(object, one)) {
                writeln!(notes, "warning: {warning}")?;
            }
        }
        if !is_reached {
            writeln!(notes, "warning: {}", unreached(one))?;
        }
    }
    print(&objects, notes)
}

/// Prints the objects without the injected parts.
///
/// # Errors
/// Returns one line that names the object at fault and the remedy.
pub(crate) fn remove(args: &UninjectArgs) -> anyhow::Result<Output> {
    let mut objects = read(&args.files)?;
    let mut notes =
        format!("warning: no object in the input has the annotation {INJECTED_ANNOTATION}\n");
    for object in &mut objects {
        if inject::uninject(object).map_err(|problem| anyhow!(problem))? {
            notes.clear();
        }
    }
    print(&objects, notes)
}

fn unreached(one: &Injected) -> String {
    format!(
        "{}: no Service in the input reaches its Envoy; those that point at port {} bypass it \
         until their targetPort is {}",
        one.workload, one.app_port, one.port_name
    )
}

fn print(objects: &[Value], notes: String) -> anyhow::Result<Output> {
    let text = objects
        .iter()
        .map(document)
        .collect::<anyhow::Result<_>>()?;
    Ok(Output {
        notes,
        ..Output::ok(text)
    })
}

/// Reads the objects of files.
fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for file in files {
        let (name, text) = text_of(file)?;
        objects.extend(objects_of(&text).with_context(|| name)?);
    }
    Ok(objects)
}

/// Parses the objects in a text. Lists are flattened.
fn objects_of(text: &str) -> anyhow::Result<Vec<Value>> {
    let options = serde_saphyr::options! {
        // As in the API server's YAML parser, `defaultMode: 0440` is octal.
        legacy_octal_numbers: true,
        // All workloads of a cluster have more nodes than the default allows. What aliases add has
        // a limit of its own.
        budget: serde_saphyr::budget! {
            max_documents: usize::MAX,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
        },
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| anyhow!(one_line(&error.without_snippet().to_string())))?;
    let mut objects = Vec::new();
    for document in documents {
        match document {
            Value::Null => {}
            Value::Object(mut list) if list.get("kind") == Some(&"List".into()) => {
                match list.remove("items") {
                    Some(Value::Array(items)) => objects.extend(items),
                    _ => bail!("items: not a list; a List has its objects there"),
                }
            }
            object => objects.push(object),
        }
    }
    if objects.iter().any(|object| !object["kind"].is_string()) {
        bail!("kind: missing; each document is a Kubernetes object");
    }
    objects.iter_mut().for_each(drop_written_by_the_server);
    Ok(objects)
}

/// Removes the fields that only the API server writes. With `resourceVersion`, `kubectl apply`
/// fails if the object's status has changed since it was read.
fn drop_written_by_the_server(object: &mut Value) {
    const OF_METADATA: [&str; 5] = [
        "creationTimestamp",
        "generation",
        "managedFields",
        "resourceVersion",
        "uid",
    ];
    let Some(object) = object.as_object_mut() else {
        return;
    };
    object.remove("status");
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| !OF_METADATA.contains(&field.as_str()));
    }
}
