//! `headgate inject`: an Envoy with a Headgate slot in the Pods of workloads.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;

use super::Output;
use super::input::text_of;
use crate::endpoint::Endpoint;
use crate::inject::{self, Injected, Outcome, Settings};
use crate::xds::module::Kind;

/// Adds an Envoy with a Headgate slot to the Pods of Deployments, StatefulSets, DaemonSets, ReplicaSets and Pods, and
/// prints them with all other objects: `headgate inject app.yaml | kubectl apply -f -`. Services in the same input
/// that point at the application's port by number are pointed at Envoy
#[derive(Debug, Clone, Args)]
pub struct InjectArgs {
    /// Files with Kubernetes objects, or - for standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub files: Vec<PathBuf>,
    /// Where the application listens [default: the annotation headgate.dev/app-port of the Pods, else their only port]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub app_port: Option<u16>,
    /// Where Envoy listens
    #[arg(long, value_name = "PORT", default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..))]
    pub listen_port: u16,
    /// Address of the operator
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "headgate.headgate-system.svc:18000"
    )]
    pub xds: Endpoint,
    /// Secret with the namespace's certificate, which headgate certificate proxy makes
    #[arg(long, value_name = "NAME", default_value = "headgate-proxy-tls")]
    pub tls_secret: String,
    /// Image with this program and the filter modules
    #[arg(long, value_name = "IMAGE", default_value_t = format!("headgate:{}", env!("CARGO_PKG_VERSION")))]
    pub image: String,
    /// Envoy's image
    #[arg(long, value_name = "IMAGE", default_value = "envoyproxy/envoy:v1.40.0")]
    pub envoy_image: String,
    /// The application speaks HTTP/2, as gRPC servers do
    #[arg(long)]
    pub upstream_http2: bool,
    /// Worker threads of Envoy
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrency: u32,
    /// In what form Envoy loads the filter: wasm, or native, which needs Envoy 1.39 or newer. One that can't load it gets
    /// wasm
    #[arg(long, value_name = "KIND", default_value = "wasm")]
    pub filter: Kind,
}

/// Prints the objects.
///
/// # Errors
/// One line that names the object at fault and what to do.
pub fn run(args: &InjectArgs) -> anyhow::Result<Output> {
    let mut objects = Vec::new();
    for file in &args.files {
        let (name, text) = text_of(file)?;
        objects.extend(read(&text).with_context(|| name)?);
    }
    let settings = Settings {
        image: args.image.clone(),
        envoy_image: args.envoy_image.clone(),
        xds: args.xds.clone(),
        tls_secret: args.tls_secret.clone(),
        listen_port: args.listen_port,
        app_port: args.app_port,
        upstream_http2: args.upstream_http2,
        concurrency: args.concurrency,
        filter: args.filter,
    };
    let (mut injected, mut notes) = (Vec::new(), String::new());
    for object in &mut objects {
        match inject::inject(object, &settings) {
            Ok(Outcome::Injected(one)) => injected.push(one),
            Ok(Outcome::Skipped(why)) => writeln!(notes, "warning: {why}")?,
            Ok(Outcome::NoWorkload) => {}
            Err(problem) => bail!(problem),
        }
    }
    if injected.is_empty() && notes.is_empty() {
        bail!("no workload in the input: a Deployment, StatefulSet, DaemonSet, ReplicaSet or Pod");
    }
    for one in &injected {
        let mut is_reached = one.took_name;
        for object in &mut objects {
            is_reached |= inject::redirect(object, one);
        }
        if !is_reached {
            writeln!(notes, "warning: {}", unreached(one))?;
        }
    }
    let mut text = String::new();
    for object in &objects {
        write!(text, "---\n{}", serde_saphyr::to_string(object)?)?;
    }
    Ok(Output {
        text,
        notes,
        ok: true,
    })
}

fn unreached(one: &Injected) -> String {
    format!(
        "{}: no Service in the input reaches its Envoy; those that point at port {} pass it by until their targetPort \
         is {}",
        one.workload, one.app_port, one.port_name
    )
}

/// Objects of a text, those of lists one by one.
fn read(text: &str) -> anyhow::Result<Vec<Value>> {
    // As the API server reads it: `defaultMode: 0440` is octal.
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)?;
    let mut objects = Vec::new();
    for document in documents {
        match document {
            Value::Null => {}
            Value::Object(mut list) if list.get("kind") == Some(&"List".into()) => {
                match list.remove("items") {
                    Some(Value::Array(items)) => objects.extend(items),
                    _ => bail!("items: a List has a list of objects there"),
                }
            }
            object => objects.push(object),
        }
    }
    match objects.iter().find(|object| !object["kind"].is_string()) {
        Some(_) => bail!("kind: missing; each document is a Kubernetes object"),
        None => Ok(objects),
    }
}
