//! The namespaces that match a label selector, updated when labels change.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::{mpsc, watch};

use headgate_deliver::readable::Readable;
use headgate_deliver::watch::{Namespaces, Seen, Watch};

/// The capacity of the queue of changes. The watch waits while it is full.
const BACKLOG: usize = 64;

/// Returns the namespaces that match `selector`, and keeps them up to date while they are used.
/// They don't change while the API server doesn't answer.
pub fn selected(client: &Client, selector: &str) -> Namespaces {
    let (names, receiver) = watch::channel(None);
    let (out, mut news) = mpsc::channel(BACKLOG);
    let api = Api::<Readable<PartialObjectMeta<Namespace>>>::all(client.clone());
    let mut watch = Watch::new("namespaces", &Namespaces::fixed(&[]), move |_| api.clone());
    watch.config = watch.config.labels(selector);
    let name = |namespace: PartialObjectMeta<Namespace>| namespace.name_any();
    tokio::spawn(watch.follow(name, |seen| seen, out));
    tokio::spawn(async move {
        loop {
            let seen = tokio::select! {
                Some(seen) = news.recv() => seen,
                () = names.closed() => return,
                else => return,
            };
            names.send_if_modified(|known| apply(known, seen));
        }
    });
    Namespaces(receiver)
}

/// Applies an observation to `known`. Returns whether the names changed.
fn apply(known: &mut Option<BTreeSet<String>>, seen: Seen<String>) -> bool {
    match (seen, known) {
        (Seen::All(all), known) => {
            let all = Some(all.into_iter().collect());
            let changed = *known != all;
            *known = all;
            changed
        }
        (Seen::Applied(name), Some(known)) => known.insert(name),
        (Seen::Deleted(name), Some(known)) => known.remove(&name),
        (Seen::Applied(_) | Seen::Deleted(_) | Seen::Within(..) | Seen::Failed { .. }, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_labels_and_survive_failures() {
        let mut known = None;
        let mut see = |seen| {
            let changed = apply(&mut known, seen);
            let names = known
                .clone()
                .map(|names| names.into_iter().collect::<Vec<_>>());
            (changed, names.map(|names| names.join(" ")))
        };
        let name = || "a".to_owned();
        let are = |names: &str| Some(names.to_owned());
        assert_eq!(see(Seen::Failed { status: Some(500) }), (false, None));
        assert_eq!(see(Seen::All(Vec::new())), (true, are("")));
        assert_eq!(see(Seen::Applied(name())), (true, are("a")));
        // This event is a change of other labels or of annotations.
        assert_eq!(see(Seen::Applied(name())), (false, are("a")));
        assert_eq!(see(Seen::Failed { status: None }), (false, are("a")));
        assert_eq!(see(Seen::All(vec!["b".into(), name()])), (true, are("a b")));
        // A watch with a selector sees a lost label as a deletion.
        assert_eq!(see(Seen::Deleted(name())), (true, are("b")));
    }
}
