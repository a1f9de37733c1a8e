//! Leader election among the replicas.
//!
//! All replicas serve proxies, but only the holder of a Lease writes to the API server. A replica
//! that lost the Lease has stopped writing before another replica may begin. To ensure this, a
//! holder relies on its Lease only for [`ElectionArgs::renew_deadline`] since it *sent* its last
//! successful renewal. This is shorter than the time that others wait
//! ([`ElectionArgs::lease_duration`]) by more than a write may take ([`WRITE_TIMEOUT`]). Each
//! replica measures time on its own monotonic clock, so the replicas' wall clocks need not agree. A
//! replica treats a Lease as abandoned only after it has observed no renewal for the whole
//! duration.
//!
//! `kube-lease-manager` isn't used for these reasons. It doesn't report until when a lock is valid.
//! While the API server is unavailable, it doesn't report a lock as lost. It compares the holder's
//! wall clock with its own. It frees an expired lock by a forced patch without a `resourceVersion`,
//! which can take the Lease from a replica that has just acquired it.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use clap::{ArgAction, Args};
use headgate_api::Duration as Text;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use crate::metrics::Metrics;
use headgate_deliver::cluster::ObjectKey;
use headgate_deliver::object::FIELD_MANAGER;
use headgate_xds::random::random;

/// The timeout of one write.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(4);
/// The longest timeout of one request.
const REQUEST: Duration = Duration::from_secs(4);
/// The time for which a replica without an election leads. It is longer than the life of any
/// process.
const ALWAYS: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The election of the replica that writes. The options are those of Kubernetes' own controllers.
#[derive(Debug, Clone, Copy, Args)]
pub struct ElectionArgs {
    /// Elect a leader among the replicas, by a Lease. Only the leader writes to the API server.
    /// Without an election, run one replica at a time
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        default_value_t = true,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true
    )]
    pub leader_elect: bool,
    /// Time without a renewal after which another replica acquires the Lease, in whole seconds
    #[arg(
        long = "leader-elect-lease-duration",
        value_name = "DURATION",
        default_value = "15s",
        value_parser = Text::above_zero
    )]
    pub lease_duration: Duration,
    /// Time after its last renewal at which a leader stops writing. It must be shorter than the
    /// lease duration by more than 4s, the timeout of a write
    #[arg(
        long = "leader-elect-renew-deadline",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = Text::above_zero
    )]
    pub renew_deadline: Duration,
    /// Interval between two attempts of a replica to acquire the Lease. It must be shorter than the
    /// renew deadline
    #[arg(
        long = "leader-elect-retry-period",
        value_name = "DURATION",
        default_value = "2s",
        value_parser = Text::above_zero
    )]
    pub retry_period: Duration,
}

impl ElectionArgs {
    /// Checks that a leader has stopped writing before another replica begins.
    ///
    /// # Errors
    /// Returns one line that names the argument at fault and a valid value.
    pub fn check(&self) -> anyhow::Result<()> {
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        ensure!(
            lease.subsec_nanos() == 0 && i32::try_from(lease.as_secs()).is_ok(),
            "--leader-elect-lease-duration {}: a Lease has whole seconds, such as 15s",
            Text::from(lease)
        );
        ensure!(
            renew + WRITE_TIMEOUT < lease,
            "--leader-elect-renew-deadline {}: a write takes up to {} more and would end after \
             --leader-elect-lease-duration {}, when another replica may lead; choose a shorter \
             deadline or a longer duration",
            Text::from(renew),
            Text::from(WRITE_TIMEOUT),
            Text::from(lease)
        );
        ensure!(
            retry < renew,
            "--leader-elect-retry-period {}: must be shorter than --leader-elect-renew-deadline {}",
            Text::from(retry),
            Text::from(renew)
        );
        Ok(())
    }

    /// Returns the pause after a failed attempt to take or renew the Lease.
    fn pause(&self, is_leading: bool) -> Duration {
        let pause = self.retry_period / 2;
        // After a renewal without an answer, at least a fifth of the deadline is left. Half of that
        // is for the second attempt.
        let longest = self.renew_deadline / 10;
        if is_leading {
            pause.min(longest)
        } else {
            pause
        }
    }

    /// Returns the interval between renewals.
    fn renewal(&self) -> Duration {
        self.renew_deadline * 2 / 5
    }

    /// Returns the timeout of one request, short enough that a second attempt fits into the
    /// deadline.
    fn request(&self) -> Duration {
        self.renewal().min(REQUEST)
    }
}

/// The time until which this replica is the leader. `None` if it isn't.
pub type Leadership = watch::Receiver<Option<Instant>>;

/// Whether a write may begin now.
pub fn may_write(leadership: &Leadership, now: Instant) -> bool {
    leadership.borrow().is_some_and(|until| now < until)
}

/// Runs `task` each time this replica becomes the leader, and cancels it when leadership is lost.
/// Returns when `task` completes or the candidate is dropped.
pub(super) async fn while_leading<F: Future<Output = ()>>(
    mut leadership: Leadership,
    mut task: impl FnMut() -> F,
) {
    while leadership.wait_for(Option::is_some).await.is_ok() {
        tokio::select! {
            () = task() => return,
            lost = leadership.wait_for(Option::is_none) => if lost.is_err() {
                return;
            },
        }
    }
}

/// A candidate for the Lease.
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    election: ElectionArgs,
    metrics: Metrics,
    leadership: watch::Sender<Option<Instant>>,
    /// The time at which this replica began to serve, on its wall clock.
    started: Timestamp,
    outage: Arc<AtomicBool>,
    /// The last observed Lease, and the time since which it has been unchanged.
    seen: Option<(Lease, Instant)>,
    failing: bool,
}

/// Whether `identity` may take a Lease that has been unchanged for `unchanged`. It may if it holds
/// the Lease already, or if the Lease is free or expired.
fn is_free(spec: &LeaseSpec, identity: &str, unchanged: Duration) -> bool {
    let seconds = spec.lease_duration_seconds.unwrap_or(0);
    let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    match spec.holder_identity.as_deref() {
        None | Some("") => true,
        Some(holder) => holder == identity || unchanged >= duration,
    }
}

impl Candidate {
    /// Returns a candidate for `lease`, its leadership, and a flag for an outage. `identity` must
    /// be unique among all replicas. Without an election, the replica leads until it stops.
    ///
    /// When this replica takes the Lease, the candidate sets the flag if the previous leader may
    /// have ended before this replica began to serve. It compares the wall clocks of both. The task
    /// that handles such an outage clears the flag.
    pub fn new(
        client: Client,
        lease: ObjectKey,
        identity: String,
        election: ElectionArgs,
        metrics: Metrics,
    ) -> (Self, Leadership, Arc<AtomicBool>) {
        let (leadership, receiver) = watch::channel(None);
        // Without a Lease, nothing is known about a previous leader.
        let outage = Arc::new(AtomicBool::new(!election.leader_elect));
        let candidate = Self {
            api: Api::namespaced(client, &lease.namespace),
            name: lease.name,
            identity,
            election,
            metrics,
            leadership,
            started: Timestamp::now(),
            outage: Arc::clone(&outage),
            seen: None,
            failing: false,
        };
        (candidate, receiver, outage)
    }

    /// Takes part in the election until `stop` holds `true`, and then releases the Lease. All
    /// writes must have stopped by then.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        // This replica serves from now on.
        self.started = Timestamp::now();
        if !self.election.leader_elect {
            self.lead_until(Instant::now() + ALWAYS);
            // An error means that the sender was dropped. The replica should then stop, too.
            let _ = stop.wait_for(|stop| *stop).await;
            return self.end();
        }
        // The expiry doesn't cancel an attempt, because a renewal whose answer is never read could
        // take the Lease without a way to release it.
        let expiry = expiry(self.leadership.clone(), self.metrics.clone());
        tokio::select! {
            () = self.elect(stop) => {}
            never = expiry => match never {},
        }
        self.release().await;
    }

    /// Takes or renews the Lease until `stop` holds `true`.
    async fn elect(&mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let begun = Instant::now();
            let pause = match timeout(self.election.request(), self.attempt()).await {
                Ok(Ok(true)) => {
                    self.recovered();
                    self.lead_until(begun + self.election.renew_deadline);
                    self.election.renewal()
                }
                Ok(Ok(false)) => {
                    self.recovered();
                    self.lose("another replica holds the Lease");
                    self.election.retry_period
                }
                Ok(Err(error)) => self.failed(&error.to_string()),
                Err(_) => self.failed("no answer in time"),
            };
            let next = Instant::now() + pause.mul_f64(0.9 + (random() % 100) as f64 / 1_000.0);
            tokio::select! {
                () = sleep_until(next) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    fn lead_until(&self, until: Instant) {
        if self.leadership.send_replace(Some(until)).is_none() {
            info!(identity = self.identity, "leading: this replica writes");
            self.metrics.plan.set_leader(true);
        }
    }

    fn end(&self) {
        self.leadership.send_replace(None);
        self.metrics.plan.set_leader(false);
    }

    fn lose(&self, why: &str) {
        lose(&self.leadership, &self.metrics, why);
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.failing) {
            info!("requests for the Lease succeed again");
        }
    }

    fn failed(&mut self, why: &str) -> Duration {
        if !std::mem::replace(&mut self.failing, true) {
            warn!(lease = self.name, "{why}; trying again");
        }
        let is_leading = self.is_leading();
        if is_leading {
            // The request may have succeeded, so the known Lease may be old.
            self.seen = None;
        }
        self.election.pause(is_leading)
    }

    /// Makes one attempt to take or renew the Lease. Returns whether this replica holds it.
    async fn attempt(&mut self) -> kube::Result<bool> {
        // A holder renews the Lease that it wrote last without reading it again.
        let known = self.seen.as_ref().filter(|_| self.is_leading());
        if let Some(lease) = known.map(|(lease, _)| lease.clone())
            && self.take(lease).await?
        {
            return Ok(true);
        }
        match self.api.get_opt(&self.name).await? {
            Some(lease) => {
                let unchanged = self.look(&lease);
                let spec = lease.spec.clone().unwrap_or_default();
                match is_free(&spec, &self.identity, unchanged) {
                    true => self.take(lease).await,
                    false => Ok(false),
                }
            }
            None => self.create().await,
        }
    }

    fn is_leading(&self) -> bool {
        self.leadership.borrow().is_some()
    }

    /// Records an observed Lease. Returns the time for which it has been unchanged.
    fn look(&mut self, lease: &Lease) -> Duration {
        let version = |l: &Lease| l.metadata.resource_version.clone();
        match &self.seen {
            Some((known, since)) if version(known) == version(lease) => since.elapsed(),
            _ => {
                self.seen = Some((lease.clone(), Instant::now()));
                Duration::ZERO
            }
        }
    }

    async fn take(&mut self, mut lease: Lease) -> kube::Result<bool> {
        let before = lease.spec.unwrap_or_default();
        lease.spec = Some(self.ours(&before));
        if before.renew_time.is_some_and(|at| at.0 < self.started) {
            self.outage.store(true, Ordering::Relaxed);
        }
        self.write(lease).await
    }

    fn ours(&self, before: &LeaseSpec) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let held = before.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = before.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.election.lease_duration.as_secs()).ok(),
            acquire_time: match &before.acquire_time {
                Some(time) if held => Some(time.clone()),
                _ => Some(now.clone()),
            },
            renew_time: Some(now),
            lease_transitions: Some(transitions.saturating_add(i32::from(!held))),
            ..LeaseSpec::default()
        }
    }

    async fn create(&mut self) -> kube::Result<bool> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(self.ours(&LeaseSpec::default())),
        };
        let created = self.api.create(&PostParams::default(), &lease).await;
        self.written(created)
    }

    /// Writes the Lease, unless it has changed. The patch carries its `resourceVersion`, so the API
    /// server refuses the patch after another write.
    async fn write(&mut self, lease: Lease) -> kube::Result<bool> {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": lease.metadata.resource_version},
            "spec": lease.spec,
        }));
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patched = self.api.patch(&self.name, &params, &patch).await;
        self.written(patched)
    }

    fn written(&mut self, result: kube::Result<Lease>) -> kube::Result<bool> {
        match result {
            Ok(lease) => {
                self.seen = Some((lease, Instant::now()));
                Ok(true)
            }
            // Another replica wrote first, or the Lease was deleted.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.seen = None;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Releases the Lease, so that another replica doesn't have to wait for it to expire.
    async fn release(&mut self) {
        if !self.is_leading() {
            return;
        }
        self.end();
        let Some((mut lease, _)) = self.seen.take() else {
            return;
        };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        match timeout(self.election.request(), self.write(lease)).await {
            Ok(Ok(true)) => info!(identity = self.identity, "released the Lease"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => warn!(lease = self.name, "releasing the Lease failed: {error}"),
            Err(_) => warn!(
                lease = self.name,
                "releasing the Lease failed: no answer in time"
            ),
        }
    }
}

/// Publishes the end of leadership whenever it expires.
async fn expiry(leadership: watch::Sender<Option<Instant>>, metrics: Metrics) -> Infallible {
    let mut renewed = leadership.subscribe();
    loop {
        let until = *renewed.borrow_and_update();
        let expired = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = renewed.changed() => {}
            () = expired => lose(&leadership, &metrics, "the Lease could not be renewed"),
        }
    }
}

fn lose(leadership: &watch::Sender<Option<Instant>>, metrics: &Metrics, why: &str) {
    if leadership.send_replace(None).is_some() {
        warn!("no longer leading: {why}");
        metrics.plan.set_leader(false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use clap::{Command, FromArgMatches as _};

    use super::*;
    use headgate_fakes::api_server;

    fn election(arguments: &[&str]) -> ElectionArgs {
        let command = ElectionArgs::augment_args(Command::new("run").no_binary_name(true));
        ElectionArgs::from_arg_matches(&command.try_get_matches_from(arguments).unwrap()).unwrap()
    }

    fn lease(holder: Option<&str>, seconds: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: Some(seconds),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_ours_or_abandoned() {
        let at = |spec: &LeaseSpec, seconds| is_free(spec, "me", Duration::from_secs(seconds));
        assert!(at(&LeaseSpec::default(), 0));
        assert!(at(&lease(Some(""), 15), 0), "given back");
        assert!(at(&lease(Some("me"), 15), 0));
        assert!(!at(&lease(Some("other"), 15), 14));
        assert!(at(&lease(Some("other"), 15), 15));
    }

    /// The time counts from the last observed change of the Lease, also if the API server fails
    /// meanwhile.
    #[tokio::test]
    async fn a_follower_remembers_since_when_a_lease_is_unchanged() {
        let held = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "headgate", "namespace": "a", "resourceVersion": "7"},
            "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15},
        });
        let asked = AtomicU32::new(0);
        let client = api_server(move |_, _, _| {
            let is_second = asked.fetch_add(1, Ordering::Relaxed) % 2 == 1;
            Some((if is_second { 500 } else { 200 }, held.clone()))
        });
        let (mut candidate, leadership, _) = Candidate::new(
            client,
            ObjectKey::new("a", "headgate"),
            "me".to_owned(),
            election(&[]),
            Metrics::new(),
        );
        assert!(!candidate.attempt().await.unwrap());
        let (_, since) = candidate.seen.clone().unwrap();
        let error = candidate.attempt().await.unwrap_err();
        candidate.failed(&error.to_string());
        assert!(!candidate.attempt().await.unwrap());
        assert_eq!(candidate.seen.unwrap().1, since);
        assert!(leadership.borrow().is_none());
    }

    /// A restarted container has the identity of its predecessor.
    #[tokio::test]
    async fn a_gap_between_operators_is_noticed() {
        for (renewed, is_outage) in [
            ("2020-01-01T00:00:00Z", true),
            ("2120-01-01T00:00:00Z", false),
        ] {
            let held = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "headgate", "namespace": "a", "resourceVersion": "7"},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": renewed},
            });
            let (mut candidate, _, outage) = Candidate::new(
                api_server(move |_, _, _| Some((200, held.clone()))),
                ObjectKey::new("a", "headgate"),
                "me".to_owned(),
                election(&[]),
                Metrics::new(),
            );
            assert!(candidate.attempt().await.unwrap());
            let until = Instant::now() + candidate.election.renew_deadline;
            candidate.lead_until(until);
            assert_eq!(outage.load(Ordering::Relaxed), is_outage, "{renewed}");
            candidate.lose("for a while");
            candidate.lead_until(until);
            let left = outage.load(Ordering::Relaxed);
            assert_eq!(left, is_outage, "{renewed}: nobody has handled it");
        }
    }

    #[test]
    fn a_holder_stops_before_another_begins() {
        for (arguments, wrong) in [
            (&[][..], None),
            (
                &[
                    "--leader-elect-lease-duration=60s",
                    "--leader-elect-renew-deadline=55s",
                ],
                None,
            ),
            (
                &["--leader-elect-lease-duration=14s"],
                Some("--leader-elect-renew-deadline 10s: "),
            ),
            (
                &["--leader-elect-lease-duration=15s500ms"],
                Some("--leader-elect-lease-duration 15s500ms: "),
            ),
            (
                &["--leader-elect-retry-period=10s"],
                Some("--leader-elect-retry-period 10s: "),
            ),
            // The first case has a short deadline, the second has the longest retry period.
            (&["--leader-elect-renew-deadline=5s"], None),
            (&["--leader-elect-retry-period=9999ms"], None),
        ] {
            let election = election(arguments);
            let error = election.check().err().map(|error| error.to_string());
            let is_as_expected = match (&error, wrong) {
                (None, None) => true,
                (Some(error), Some(start)) => error.starts_with(start),
                _ => false,
            };
            assert!(is_as_expected, "{arguments:?}: {error:?}");
            let one_fails = election.renewal() + election.request();
            assert!(one_fails < election.renew_deadline, "{arguments:?}");
            let second = one_fails + election.pause(true);
            assert!(second < election.renew_deadline, "{arguments:?}");
        }
    }

    /// Such a replica neither takes a Lease nor needs the right to take one.
    #[tokio::test]
    async fn a_single_replica_leads_without_an_election() {
        let api_server = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>("no request is expected")
        });
        let (candidate, mut leadership, outage) = Candidate::new(
            Client::new(api_server, "a"),
            ObjectKey::new("a", "headgate"),
            "me".to_owned(),
            election(&["--leader-elect=false"]),
            Metrics::new(),
        );
        assert!(outage.load(Ordering::Relaxed));
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(candidate.run(stopped));
        leadership.wait_for(Option::is_some).await.unwrap();
        let in_a_year = Instant::now() + Duration::from_secs(365 * 86_400);
        assert!(may_write(&leadership, in_a_year));
        stop.send_replace(true);
        running.await.unwrap();
        assert!(leadership.borrow().is_none());
    }

    #[tokio::test]
    async fn writing_ends_with_the_time_for_which_the_lease_is_valid() {
        let now = Instant::now();
        let (sender, leadership) = watch::channel(None);
        assert!(!may_write(&leadership, now));
        let valid = election(&[]).renew_deadline;
        sender.send_replace(Some(now + valid));
        assert!(may_write(&leadership, now));
        assert!(!may_write(&leadership, now + valid));
    }
}
