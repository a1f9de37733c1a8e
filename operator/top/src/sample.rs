//! One response of a proxy: Headgate's stats from Envoy's `/stats`, by policy, type and workflow.
//!
//! Envoy 1.40 has several formats of stats. Plain text with `histogram_buckets=disjoint` is the
//! smallest one that suffices for all views: 7 kB for a policy with two types, compared to 23 kB
//! for JSON and 49 kB for JSON with details (measured). The `summary` format is still smaller, but
//! percentiles of several proxies can't be merged, and their time span is unknown. `usedonly` would
//! save a quarter, but a counter at zero would look like a counter that this version of the filter
//! doesn't have.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_command::table::one_line;

use crate::histogram::Histogram;

/// The stats to request, as an RE2 expression. It leaves out estimates and the workers' own
/// records, which are half of all lines.
const FILTER: &str = r"^(server\.uptime$|(wasm|dynamicmodules)custom\.headgate\.(panics$|(workflow|service)\.|policy\.[^.]+\.([a-z_]+$|type\.[^.]+\.(rq_|slo_|value_|queue_wait_us$|response_time_us$)|workflow\.|service\.)))";

/// The prefixes of Headgate's stats. The first has Envoy's prefix for Wasm filters. The native
/// filter's stats have the same prefix if the bootstrap sets it. Otherwise, for example with Envoy
/// Gateway, they have the second, with Envoy's prefix for dynamic modules.
const PREFIXES: [&str; 2] = ["wasmcustom.headgate.", "dynamicmodulescustom.headgate."];
/// The part of a stat's name before the policy.
const POLICY: &str = "policy.";
/// A gauge that only the native filter has.
const NATIVE: &str = "panics";
/// Envoy's uptime in seconds. It is updated when Envoy flushes its stats, every 5 s by default.
const UPTIME: &str = "server.uptime";

/// The kind of those parts of a policy that are request types.
pub const TYPE: &str = "type";
/// The kind of those parts of a policy that are workflows.
pub(crate) const WORKFLOW: &str = "workflow";
/// The kind of those parts of a policy that are downstream services. A service's only stat,
/// `index`, is its value in the gauge `bottleneck`.
pub(crate) const SERVICE: &str = "service";

/// Returns the path and query of the request to the admin address.
pub(crate) fn path() -> String {
    let filter: String = form_urlencoded::byte_serialize(FILTER.as_bytes()).collect();
    format!("/stats?histogram_buckets=disjoint&filter={filter}")
}

/// The stats of a policy or of a part of it. Envoy's text format doesn't distinguish counters from
/// gauges, but the stats' names do.
#[derive(Default)]
pub struct Stats {
    values: BTreeMap<String, u64>,
    histograms: BTreeMap<String, Histogram>,
}

/// The parts of a policy, by kind and name as in the names of stats. The part with an empty kind
/// and name is the whole policy.
pub type Parts<T> = BTreeMap<String, BTreeMap<String, T>>;

/// One response of a proxy.
#[derive(Default)]
pub struct Sample {
    pub(crate) about: About,
    /// The age of the proxy's process, accurate to a few seconds.
    pub(crate) uptime: Option<Duration>,
    /// Whether the filter is native.
    pub(crate) is_native: bool,
    /// The policies by `namespace/name`, each with the stats of its parts. For those in force, see
    /// [`Self::in_force`].
    pub policies: BTreeMap<String, Parts<Stats>>,
}

/// A proxy's version and name, as it reports them.
#[derive(Clone, Default)]
pub(crate) struct About {
    /// Envoy's version, such as `1.40.0`.
    pub(crate) version: String,
    /// Node id.
    pub(crate) node: String,
}

/// Returns the parts of a kind, each with its name.
pub fn of<'a, T>(parts: &'a Parts<T>, kind: &str) -> impl Iterator<Item = (&'a str, &'a T)> {
    let parts = parts.get(kind).into_iter().flatten();
    parts.map(|(name, part)| (name.as_str(), part))
}

/// Returns the stats of the whole policy, if there are any.
pub(crate) fn whole<T>(parts: &Parts<T>) -> Option<&T> {
    parts.get("")?.get("")
}

impl Stats {
    /// Returns a counter or a gauge, or `None` if this version of the filter doesn't have it.
    pub(crate) fn value(&self, name: &str) -> Option<u64> {
        self.values.get(name).copied()
    }

    /// Returns a histogram, or `None` if this version of the filter doesn't have it.
    pub fn histogram(&self, name: &str) -> Option<&Histogram> {
        self.histograms.get(name)
    }

    /// Returns the values whose names begin with `prefix`, with the rest of their names.
    pub(crate) fn values<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        let from = self.values.range(prefix.to_owned()..);
        from.map_while(move |(name, value)| Some((name.strip_prefix(prefix)?, *value)))
    }
}

impl Sample {
    /// Returns the policies in force, by `namespace/name`. Envoy keeps the stats of a removed
    /// policy, with 0 slots.
    pub fn in_force(&self) -> impl Iterator<Item = (&str, &Parts<Stats>)> {
        let slots = |policy: &Parts<Stats>| whole(policy)?.value("slots");
        let all = { self.policies.iter() }.map(|(name, policy)| (name.as_str(), policy));
        all.filter(move |(_, policy)| slots(policy) != Some(0))
    }

    /// Parses a response to [`path`]. Skips unknown lines, because a proxy may run a newer version
    /// of the filter.
    pub(crate) fn parse(text: &str) -> Self {
        let mut sample = Self::default();
        for line in text.lines() {
            // The line is split at the last colon, because a name may contain a colon and a value
            // doesn't.
            let Some((name, value)) = line.rsplit_once(": ") else {
                continue;
            };
            if name == UPTIME {
                sample.uptime = value.parse().ok().map(Duration::from_secs);
                continue;
            }
            let mut prefixes = PREFIXES.iter();
            let Some(name) = prefixes.find_map(|prefix| name.strip_prefix(prefix)) else {
                continue;
            };
            sample.is_native |= name == NATIVE;
            let Some([policy, kind, part, metric]) = split(name) else {
                continue;
            };
            let policy = sample.policies.entry(one_line(policy)).or_default();
            let parts = policy.entry(kind.to_owned()).or_default();
            let stats = parts.entry(one_line(part)).or_default();
            if let Ok(value) = value.parse() {
                stats.values.insert(metric.to_owned(), value);
            } else if let Some(histogram) = Histogram::parse(value) {
                stats.histograms.insert(metric.to_owned(), histogram);
            }
        }
        sample
    }
}

/// Returns the policy, the kind and the name of its part, and the metric, of
/// `policy.<policy>.<metric>`, `policy.<policy>.<kind>.<part>.<metric>`, or the native filter's
/// `<kind>.<metric>.headgate_policy.<policy>.headgate_<kind>.<part>`.
fn split(name: &str) -> Option<[&str; 4]> {
    if let Some(name) = name.strip_prefix(POLICY) {
        let (policy, rest) = name.split_once('.')?;
        return match rest.splitn(3, '.').collect::<Vec<_>>()[..] {
            [metric] => Some([policy, "", "", metric]),
            [kind, part, metric] => Some([policy, kind, part, metric]),
            _ => None,
        };
    }
    let (family, labels) = name.split_once(".headgate_policy.")?;
    let (kind, metric) = family.split_once('.')?;
    let (policy, labels) = labels.split_once(".headgate_")?;
    let part = labels.strip_prefix(kind)?.strip_prefix('.')?;
    Some([policy, kind, part, metric])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_found_by_policy_type_and_workflow() {
        let sample = Sample::parse(
            "server.uptime: 225\n\
             wasmcustom.headgate.policy.shop/search.slots: 4\n\
             wasmcustom.headgate.policy.shop/search.type.fast.rq_total: 712\n\
             wasmcustom.headgate.policy.shop/search.type.fast.rq_rejected.reason.slo_p50: 3\n\
             wasmcustom.headgate.policy.shop/search.type.fast.queue_wait_us: B50(1,2) B1e+06(0,1)\n\
             wasmcustom.headgate.policy.shop/search.workflow.a: b.rate_mhz: 37500\n\
             wasmcustom.headgate.policy.shop/search.service.extent-node.index: 2\n\
             wasmcustom.headgate.policy.shop/search.worker.0.head_rank: 9\n\
             wasmcustom.headgate.policy.shop/search.text: \"no number\"\n\
             wasmcustom.headgate.policy.shop/unused.type.fast.queue_wait_us: No recorded values\n\
             wasmcustom.headgate.policy.\u{1b}[2J.slots: 1\n\
             wasmcustom.headgate.policy.half\n\
             cluster.upstream.rq: 1\n",
        );
        assert_eq!(sample.uptime, Some(Duration::from_secs(225)));
        let names: Vec<&str> = sample.policies.keys().map(String::as_str).collect();
        assert_eq!(names, ["?[2J", "shop/search", "shop/unused"]);
        let policy = &sample.policies["shop/search"];
        assert_eq!(whole(policy).unwrap().value("slots"), Some(4));
        assert_eq!(whole(policy).unwrap().value("text"), None);
        let part = |kind, name| &policy[kind][name];
        assert_eq!(part(SERVICE, "extent-node").value("index"), Some(2));
        let fast = part(TYPE, "fast");
        assert_eq!(fast.value("rq_total"), Some(712));
        assert_eq!(
            fast.values("rq_rejected.reason.").collect::<Vec<_>>(),
            [("slo_p50", 3)]
        );
        assert!(fast.histogram("queue_wait_us").is_some());
        assert_eq!(part(WORKFLOW, "a: b").value("rate_mhz"), Some(37_500));
    }

    #[test]
    fn a_native_filters_workflows_are_known_by_their_labels() {
        let sample = Sample::parse(
            "wasmcustom.headgate.policy.shop/a.slots: 4\n\
             wasmcustom.headgate.panics: 0\n\
             wasmcustom.headgate.workflow.rate_mhz.headgate_policy.shop/a.headgate_workflow.bulk: \
             37500\n\
             wasmcustom.headgate.service.index.headgate_policy.shop/a.headgate_service.extent: 2\n\
             wasmcustom.headgate.workflow.rate_mhz.headgate_policy.shop/a: 1\n\
             wasmcustom.headgate.workflow.headgate_policy.a.headgate_service.b: 1\n",
        );
        assert_eq!(sample.policies.len(), 1);
        let policy = &sample.policies["shop/a"];
        assert_eq!(whole(policy).unwrap().value("slots"), Some(4));
        let of = |kind, metric| {
            let parts = of(policy, kind).map(|(name, stats)| (name, stats.value(metric)));
            parts.collect::<Vec<_>>()
        };
        assert_eq!(of(WORKFLOW, "rate_mhz"), [("bulk", Some(37_500))]);
        assert_eq!(of(SERVICE, "index"), [("extent", Some(2))]);
        assert!(sample.is_native);
    }

    #[test]
    fn envoys_own_name_for_native_filters_is_known() {
        let sample = Sample::parse("dynamicmodulescustom.headgate.policy.shop/a.slots: 4\n");
        let policy = &sample.policies["shop/a"];
        assert_eq!(whole(policy).unwrap().value("slots"), Some(4));
        let other = Sample::parse("dynamicmodulescustom.other.policy.shop/a.slots: 4\n");
        assert!(other.policies.is_empty() && !other.is_native);
    }

    #[test]
    fn the_query_has_nothing_that_a_url_may_not_have() {
        let path = path();
        let plain = |c: char| c.is_ascii_alphanumeric() || "/?&=%_.-".contains(c);
        assert!(path.chars().all(plain), "{path}");
        assert!(path.contains("%5E%28server%5C.uptime%24"), "{path}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in ".{0,200}", value in ".{0,40}") {
            let _ = Sample::parse(&text);
            let _ = Sample::parse(&format!("{}{POLICY}{text}: {value}", PREFIXES[0]));
        }
    }
}
