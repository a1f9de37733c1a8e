//! The counts of the other replicas' proxies. The leader needs them, because it writes the statuses
//! for all replicas.
//!
//! Each replica counts its own proxies and serves the counts at [`COUNTS_PATH`]. The leader
//! requests them several times a second. The answer contains the changes since the leader's version
//! (delta encoding, RFC 3229), so an edit costs the same with ten policies and with ten thousand.
//! It contains all counts only if the leader's version is older than the previous one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use serde::{Deserialize, Serialize};
use tokio::fs::read_to_string;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::leader::Leadership;
use headgate_deliver::http_client::exchange;
use headgate_deliver::watch::send_if_changed;
use headgate_xds::random::random;
use headgate_xds::review::authorize::TIMEOUT;
use headgate_xds::tally::{Changes, Tallies};

/// The path at which a replica serves the counts of its proxies.
pub const COUNTS_PATH: &str = "/status/policies";
/// The header of requests that accept changes. Its value is [`PATCH`].
pub const TAKES_CHANGES: &str = "a-im";
/// The name of the format of changes.
pub const PATCH: &str = "merge-patch";
/// The timeout of connecting to a replica.
const CONNECT: Duration = Duration::from_secs(2);
/// The timeout of a response. The replica may first wait for the API server's review of the token.
const ANSWER: Duration = TIMEOUT.saturating_add(CONNECT);
/// The pause between two requests to one replica.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause after failures, in multiples of [`PAUSE`].
const MOST_PAUSES: u32 = 8;
/// The time for which the last counts of an unreachable replica stay valid. Its proxies keep their
/// configuration.
const KEEP: Duration = Duration::from_secs(30);
/// The number of failures after which the leader no longer waits for a replica that never answered.
const TRIES: u32 = 3;
/// The largest response, in bytes. It suffices for ten thousand policies with a few targets.
const MAX_BODY: usize = 8 << 20;
/// The error for a response in an unknown format.
const STRANGE: &str = "the answer doesn't have the format of a replica's counts";
/// The largest number of replicas that are queried.
const MAX_PEERS: usize = 64;

/// The counts that a replica serves, or their changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted<P = Tallies> {
    /// The replica's name.
    pub instance: String,
    /// The counts of the replica's proxies, or their changes.
    pub policies: P,
}

/// Returns the response with a replica's counts or their changes, as JSON. If the response would be
/// too long for the leader, it has the `brief` counts. Proxies determine the texts of refusals, and
/// one proxy's text counts at each target of each of its policies. The proxies of one namespace
/// must not prevent the leader from reading the counts of all others.
///
/// # Errors
/// Serialization failed.
pub fn encoded<P: Serialize>(
    instance: &str,
    policies: &P,
    brief: impl FnOnce(&P) -> P,
) -> serde_json::Result<String> {
    let encode = |policies: &P| {
        let instance = instance.to_owned();
        serde_json::to_string(&Counted { instance, policies })
    };
    let whole = encode(policies)?;
    match whole.len() <= MAX_BODY {
        true => Ok(whole),
        false => encode(&brief(policies)),
    }
}

/// The last two versions of the counts that a replica serves.
#[derive(Debug)]
pub struct Versions {
    /// A number that distinguishes this process from earlier processes of the replica.
    run: u64,
    number: u64,
    current: Arc<Tallies>,
    before: Arc<Tallies>,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            run: random(),
            number: 0,
            current: Arc::default(),
            before: Arc::default(),
        }
    }
}

impl Versions {
    /// Makes `tallies` the current version if they have changed. Returns the name and counts of the
    /// current version and, if `known` is the previous version, the changes since then.
    pub fn publish(
        &mut self,
        tallies: Arc<Tallies>,
        known: Option<&str>,
    ) -> (String, Arc<Tallies>, Option<Changes>) {
        if self.current != tallies {
            self.before = std::mem::replace(&mut self.current, tallies);
            self.number += 1;
        }
        let before = self.number.checked_sub(1).map(|number| self.name(number));
        let is_before = known.is_some() && known == before.as_deref();
        let changes = is_before.then(|| self.current.changes_since(&self.before));
        (self.name(self.number), Arc::clone(&self.current), changes)
    }

    fn name(&self, number: u64) -> String {
        format!("\"{:016x}-{number}\"", self.run)
    }
}

/// The counts of the other replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peers {
    /// Whether every ready replica has answered or is unreachable.
    pub complete: bool,
    /// The counts of the replicas that have answered.
    pub tallies: BTreeMap<SocketAddr, Arc<Tallies>>,
}

/// The state of one replica.
#[derive(Debug)]
enum Peer {
    Silent,
    Heard(Arc<Tallies>),
    /// This replica itself, or a replica that is unreachable.
    WithoutCounts,
}

/// The counts of a replica. `None` if the replica is unreachable.
type News = Option<Counted<Arc<Tallies>>>;

/// The counts of a replica, and their version.
type Known = (String, Arc<Tallies>);

/// Follows the counts of the other replicas while this replica leads, until `shutdown` holds
/// `true`. `instance` is the name of this replica. The file `token` contains the token for requests
/// to the other replicas.
pub async fn follow(
    mut replicas: watch::Receiver<BTreeSet<SocketAddr>>,
    instance: String,
    token: Option<PathBuf>,
    mut leadership: Leadership,
    out: watch::Sender<Peers>,
    mut shutdown: watch::Receiver<bool>,
) {
    let (sender, mut news) = mpsc::channel(MAX_PEERS);
    let mut peers: BTreeMap<SocketAddr, (Peer, AbortOnDropHandle<()>)> = BTreeMap::new();
    loop {
        let wanted: BTreeSet<SocketAddr> = match leadership.borrow_and_update().is_some() {
            true => replicas
                .borrow_and_update()
                .iter()
                .take(MAX_PEERS)
                .copied()
                .collect(),
            false => BTreeSet::new(),
        };
        peers.retain(|address, _| wanted.contains(address));
        for address in wanted {
            peers.entry(address).or_insert_with(|| {
                let task = tokio::spawn(ask(address, token.clone(), sender.clone()));
                (Peer::Silent, AbortOnDropHandle::new(task))
            });
        }
        let state = Peers {
            complete: leadership.borrow().is_some()
                && peers.values().all(|(p, _)| !matches!(p, Peer::Silent)),
            tallies: peers
                .iter()
                .filter_map(|(address, (peer, _))| match peer {
                    Peer::Heard(tallies) => Some((*address, Arc::clone(tallies))),
                    Peer::Silent | Peer::WithoutCounts => None,
                })
                .collect(),
        };
        send_if_changed(&out, state);
        tokio::select! {
            _ = shutdown.wait_for(|stop| *stop) => return,
            Ok(()) = replicas.changed() => {}
            Ok(()) = leadership.changed() => {}
            Some((address, latest)) = news.recv() => {
                let Some((peer, task)) = peers.get_mut(&address) else { continue };
                *peer = match latest {
                    Some(counted) if counted.instance == instance => {
                        task.abort();
                        Peer::WithoutCounts
                    }
                    Some(counted) => Peer::Heard(counted.policies),
                    None => Peer::WithoutCounts,
                };
            }
        }
    }
}

/// Queries one replica until the receiver is dropped.
async fn ask(address: SocketAddr, token: Option<PathBuf>, out: mpsc::Sender<(SocketAddr, News)>) {
    let mut known: Option<Known> = None;
    let mut failing: Option<Instant> = None;
    let mut failures = 0_u32;
    loop {
        let latest = match timeout(ANSWER, request(address, token.as_deref(), known.as_ref())).await
        {
            Ok(Ok(answer)) => {
                if failing.take().is_some() {
                    info!(%address, "the replica answers again");
                }
                failures = 0;
                answer.map(|(version, counted)| {
                    known = version.map(|version| (version, Arc::clone(&counted.policies)));
                    Some(counted)
                })
            }
            failed => {
                let since = *failing.get_or_insert_with(Instant::now);
                failures = failures.saturating_add(1);
                if failures == 1 {
                    let why = match failed {
                        Ok(Err(error)) => format!("{error:#}"),
                        _ => "no answer in time".to_owned(),
                    };
                    warn!(
                        %address,
                        "a replica can't be reached; its last report counts for {} s: {why}",
                        KEEP.as_secs()
                    );
                }
                let never_heard = known.is_none() && failures == TRIES;
                let is_over = known.is_some() && since.elapsed() > KEEP;
                (never_heard || is_over).then(|| {
                    known = None;
                    None
                })
            }
        };
        if let Some(latest) = latest
            && out.send((address, latest)).await.is_err()
        {
            return;
        }
        sleep(pause(failures)).await;
    }
}

/// Returns the pause after this number of consecutive failures. A replica that refuses a request
/// may have asked the API server to review it, because missing permissions aren't cached.
fn pause(failures: u32) -> Duration {
    PAUSE * failures.clamp(1, MOST_PAUSES)
}

/// Sends one request. Returns the counts with their version, or `None` if the version of `known` is
/// still current.
async fn request(
    address: SocketAddr,
    token: Option<&Path>,
    known: Option<&Known>,
) -> anyhow::Result<Option<(Option<String>, Counted<Arc<Tallies>>)>> {
    let stream = timeout(CONNECT, TcpStream::connect(address))
        .await
        .context("no connection in time")??;
    let mut request = Request::get(COUNTS_PATH).header(header::HOST, address.to_string());
    if let Some(path) = token {
        let token = read_to_string(path).await;
        let token = token.with_context(|| format!("--peers-token {}", path.display()))?;
        request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
    }
    if let Some((version, _)) = known {
        request = request
            .header(header::IF_NONE_MATCH, version)
            .header(TAKES_CHANGES, PATCH);
    }
    let response = exchange(stream, request.body(Empty::new())?, MAX_BODY).await?;
    let body = response.body();
    let counted = match (response.status(), known) {
        // Without an ETag, 304 is the response to a request without a token.
        (StatusCode::NOT_MODIFIED, _) if response.headers().contains_key(header::ETAG) => {
            return Ok(None);
        }
        (StatusCode::OK, _) => {
            let all: Counted = serde_json::from_slice(body).context(STRANGE)?;
            Counted {
                instance: all.instance,
                policies: Arc::new(all.policies),
            }
        }
        (StatusCode::IM_USED, Some((_, before))) => {
            let changed: Counted<Changes> = serde_json::from_slice(body).context(STRANGE)?;
            let mut policies = Tallies::clone(before);
            policies.change(changed.policies);
            Counted {
                instance: changed.instance,
                policies: Arc::new(policies),
            }
        }
        (status, _) => {
            let why = String::from_utf8_lossy(body);
            bail!("it answers {status}: {}", why.trim());
        }
    };
    let version = response.headers().get(header::ETAG);
    let version = version.and_then(|v| v.to_str().ok()).map(str::to_owned);
    Ok(Some((version, counted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(total: u64) -> Tallies {
        let text = format!(r#"{{"a/p": {{"total": {total}, "running": 0, "by_target": []}}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn long_refusals_do_not_make_counts_unreadable() {
        let counts = |policies: usize| -> Tallies {
            let tally = |generation: Option<u32>, target: Option<String>| {
                serde_json::json!({
                    "generation": generation,
                    "target": target,
                    "total": 1,
                    "running": 0,
                    "rejected": {"node": "x".repeat(256), "message": "\u{1}".repeat(2_048)},
                })
            };
            let target = |number: usize| tally(Some(1), Some(format!("Service/a/{number}")));
            let policy = |number: usize| {
                let mut policy = tally(None, None);
                policy["by_target"] = (0..16).map(target).collect();
                (format!("a/p{number}"), policy)
            };
            let all: serde_json::Map<_, _> = (0..policies).map(policy).collect();
            serde_json::from_value(all.into()).unwrap()
        };
        let read = |text: &str| serde_json::from_str::<Counted>(text).unwrap().policies;
        let small = counts(1);
        let text = encoded("x", &small, Tallies::brief).unwrap();
        assert_eq!(read(&text), small);

        let large = counts(64);
        let text = encoded("x", &large, Tallies::brief).unwrap();
        assert!(text.len() < MAX_BODY / 4, "{} bytes", text.len());
        assert_eq!(read(&text), large.brief());
        let tally = large.brief().of_policy("a/p0");
        assert_eq!((tally.total, tally.running), (1, 0));
        assert!(tally.rejected.is_some());
        let changes = large.changes_since(&Tallies::default());
        let text = encoded("x", &changes, Changes::brief).unwrap();
        assert!(text.len() < MAX_BODY / 4, "{} bytes", text.len());
    }

    #[test]
    fn a_replica_that_fails_is_asked_less_often() {
        let pauses = [0, 1, 2, 8, u32::MAX].map(|failures| pause(failures).as_millis());
        assert_eq!(pauses, [250, 250, 500, 2_000, 2_000]);
    }

    #[test]
    fn changes_are_known_since_the_version_before_and_no_other() {
        let mut versions = Versions::default();
        let (first, ..) = versions.publish(Arc::new(tallies(1)), None);
        let (same, _, changes) = versions.publish(Arc::new(tallies(1)), Some(&first));
        assert_eq!((&same, changes), (&first, None));
        let (second, current, changes) = versions.publish(Arc::new(tallies(2)), Some(&first));
        assert_ne!(first, second);
        assert_eq!(*current, tallies(2));
        assert_eq!(changes, Some(tallies(2).changes_since(&tallies(1))));
        let (_, current, changes) = versions.publish(Arc::new(tallies(3)), Some(&first));
        assert_eq!((&*current, changes), (&tallies(3), None), "too old");
        let (other, ..) = Versions::default().publish(Arc::new(tallies(1)), None);
        assert_ne!(first, other, "another run");
    }
}
