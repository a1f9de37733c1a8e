//! `headgate status --watch` and `--wait`: follow the changes of policies and their statuses.

use std::io::{self, Write as _};
use std::pin::pin;

use anyhow::bail;
use futures::{FutureExt as _, StreamExt as _};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector};
use tokio::time::{Instant, timeout_at};

use super::view::View;
use super::{StatusArgs, answer};
use headgate_command::cluster::{Cluster, no_policies};
use headgate_command::output::{Output, OutputFormat, print};
use headgate_controller::kubernetes::resource::PolicyResource;
use headgate_deliver::readable::Readable;

/// Follows the policies of `namespace`, or of all namespaces. With `--wait`, ends when all are
/// programmed or `--timeout` has passed. With `--watch`, prints the status after each change, and
/// ends when the reader closes the output.
///
/// Returns an error if the first list of policies fails or, with `--wait`, takes longer than
/// `--timeout`. Later failures of the watch are retried.
pub(super) async fn follow(
    cluster: &Cluster,
    args: &StatusArgs,
    namespace: Option<&str>,
) -> anyhow::Result<Output> {
    let config = match &args.policy {
        Some(name) => watcher::Config::default().fields(&format!("metadata.name={name}")),
        None => watcher::Config::default(),
    };
    let (store, writer) = reflector::store::<Readable<PolicyResource>>();
    let events = watcher(cluster.policies_api(namespace), config).default_backoff();
    let mut events = pin!(events.reflect(writer));
    let end = args.wait.then(|| Instant::now() + args.timeout);
    let mut shown = String::new();
    let mut listed = false;
    loop {
        let event = match end {
            Some(end) => timeout_at(end, events.next()).await,
            None => Ok(events.next().await),
        };
        let in_time = event.is_ok();
        match event.unwrap_or_default() {
            Some(Err(watcher::Error::InitialListFailed(error))) if !listed => {
                return Err(no_policies(&error));
            }
            Some(Err(_) | Ok(Event::Init | Event::InitApply(_))) => continue,
            Some(Ok(_)) => listed = true,
            None if !listed => bail!("the API server did not answer within {:?}", args.timeout),
            None => {}
        }
        // All queued events are taken, so that one output covers them.
        while let Some(Some(_)) = events.next().now_or_never() {}
        let state = store.state();
        let mut policies: Vec<PolicyResource> = state.iter().map(|p| p.0.clone()).collect();
        policies.sort_by_key(|p| (p.metadata.namespace.clone(), p.metadata.name.clone()));
        let view = View::new(&policies, &[], Vec::new(), namespace);
        let done = args.wait && view.programmed();
        if !(args.watch || done || !in_time) {
            continue;
        }
        let mut output = answer(cluster, args, namespace, &policies).await?;
        let mut is_read = true;
        if output.text != shown {
            let separator = match (shown.as_str(), args.output) {
                ("", _) | (_, OutputFormat::Json) => "",
                (_, OutputFormat::Yaml) => "---\n",
                (_, OutputFormat::Table) => "\n",
            };
            is_read = print(&format!("{separator}{}", output.text))?;
            // Nothing can be reported once standard error is closed.
            let _ = io::stderr().write_all(output.notes.as_bytes());
            shown = output.text;
        }
        if done || !in_time || !is_read {
            output.ok &= done || in_time;
            output.text = String::new();
            output.notes = match in_time {
                true => String::new(),
                false => format!("error: not programmed within {:?}\n", args.timeout),
            };
            return Ok(output);
        }
    }
}
