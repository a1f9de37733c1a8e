//! The loop: after each new plan, and after each change to our own objects, one round.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::observed::{Observed, Source, follow};
use super::reconcile::Reconciler;
use super::report::Delivered;
use super::settings::Settings;
use crate::kubernetes::cluster::Cluster;
use crate::plan::Plan;

/// How long statuses wait for the API server's first answers about our objects.
const FIRST_ANSWERS: Duration = Duration::from_secs(10);
/// Changes that wait to be taken in; watches wait when it is full.
const BACKLOG: usize = 64;

/// What deliveries are made of.
#[derive(Debug, Clone)]
pub struct View {
    /// What was seen of the cluster.
    pub cluster: Arc<Cluster>,
    /// The plan made of it.
    pub plan: Arc<Plan>,
    /// SHA-256 of the module that this operator serves, 64 digits of hex.
    pub module_sha256: String,
}

/// Delivers until `views` has no sender left. To be run by the leader alone, and dropped when it no longer
/// leads: a write that is under way then is a write of the same kind that the next leader makes.
///
/// `interrupted` says that before this operator there was perhaps none, which served the module.
/// `delivered` gets what became of the objects, when it changes; it keeps the last state when this ends.
pub async fn run(
    client: Client,
    settings: Settings,
    interrupted: bool,
    mut views: watch::Receiver<View>,
    delivered: watch::Sender<Arc<Delivered>>,
) {
    let sources = Source::needed(&settings);
    let (news, mut seen) = mpsc::channel(BACKLOG);
    let _watches = follow(&client, &sources, &settings, &news);
    let mut observed = Observed::new(&sources);
    let retry = settings.retry;
    let mut reconciler = Reconciler::new(client, settings, interrupted);
    let mut again = false;
    let mut looks = tokio::time::interval(retry);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut patience = pin!(tokio::time::sleep(FIRST_ANSWERS));
    let mut waits = true;
    views.mark_changed();
    loop {
        tokio::select! {
            changed = views.changed() => if changed.is_err() {
                return;
            },
            Some(event) = seen.recv() => observed.see(event),
            () = tokio::time::sleep(retry), if again => {}
            () = reconciler.way_is_free() => {}
            () = &mut patience, if waits => waits = false,
            _ = looks.tick(), if observed.complete() => {
                let view = views.borrow().clone();
                if !reconciler.look(&view, &observed).await {
                    continue;
                }
            }
        }
        // All that is there already is one round.
        while let Ok(event) = seen.try_recv() {
            observed.see(event);
        }
        if !observed.complete() {
            if !waits {
                delivered.send_if_modified(|known| {
                    let changed = !known.complete;
                    Arc::make_mut(known).complete = true;
                    changed
                });
            }
            continue;
        }
        let view = views.borrow_and_update().clone();
        let (report, retry) = reconciler.round(&view, &mut observed).await;
        again = retry;
        delivered.send_if_modified(|known| {
            let changed = **known != report;
            if changed {
                *known = Arc::new(report);
            }
            changed
        });
    }
}
