//! `headgate suggest`: writes a first policy from measured traffic.

mod policy;
mod routes;
#[cfg(test)]
mod tests;

use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use headgate_core::config::DEFAULT_TYPE;
use headgate_deliver::cluster::ObjectKey;
use headgate_simulator::workload::recorded::read_requests;

use crate::draft::{SERVICE, service};
use crate::input::open;
use headgate_command::output::{Output, block_on};
use headgate_top::client::{self, AdminAddress};
use headgate_top::sample::{Parts, Stats, TYPE, of};
use policy::{Found, Measured};
use routes::Routes;

/// The least number of responses for which a route's percentiles are used, equal to the filter's
/// `minSamples`.
const ENOUGH: usize = 50;

/// Prints a first policy, with a comment on the source of each number.
///
/// From an access log: a type for each route with enough requests, with ids in paths folded, and
/// objectives from the times of the responses. From a proxy with a policy in DryRun whose only type
/// is default: objectives for that type.
#[derive(Debug, Clone, Args)]
pub(crate) struct SuggestArgs {
    /// An access log of Envoy, text or JSON lines; - for standard input
    #[arg(value_name = "FILE", required_unless_present = "proxy")]
    pub(crate) log: Option<PathBuf>,
    /// Admin address of an Envoy that measures, HOST:PORT or unix:/PATH
    #[arg(long, value_name = "ADDRESS", conflicts_with = "log")]
    pub(crate) proxy: Option<AdminAddress>,
    /// The target Service of the policy
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        default_value = "default/app",
        value_parser = service
    )]
    pub(crate) service: ObjectKey,
    /// The target Gateway of the policy, in place of --service
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        conflicts_with = "service",
        value_parser = service
    )]
    pub(crate) gateway: Option<ObjectKey>,
    /// Maximum number of types in addition to default; the routes with the most processing time get
    /// one each
    #[arg(
        long,
        value_name = "N",
        default_value_t = 12,
        value_parser = clap::value_parser!(u16).range(1..=200)
    )]
    pub(crate) types: u16,
}

/// Prints a suggested policy.
///
/// # Errors
/// Returns an error for a log that can't be read or has too few requests, or for a proxy that can't
/// be queried or has too few measurements.
pub(crate) fn run(args: &SuggestArgs) -> anyhow::Result<Output> {
    let found = match (&args.log, &args.proxy) {
        (Some(log), _) => of_log(log, usize::from(args.types))?,
        (None, Some(proxy)) => of_proxy(proxy)?,
        // clap requires one of the two.
        (None, None) => bail!("an access log, or --proxy"),
    };
    let (of, target) = match &args.gateway {
        Some(gateway) => (gateway, "group: gateway.networking.k8s.io, kind: Gateway"),
        None => (&args.service, SERVICE),
    };
    Ok(Output::ok(policy::text(&found, of, target)))
}

fn of_log(path: &Path, types: usize) -> anyhow::Result<Found> {
    let (name, file) = open(path)?;
    let mut routes = Routes::default();
    let notes = read_requests(BufReader::new(file), |request| routes.add(&request));
    let notes = notes.with_context(|| name.clone())?;
    let why = || match notes.as_slice() {
        [] => String::new(),
        notes => format!("; {}", notes.join("; ")),
    };
    let few = || {
        anyhow!(
            "{name}: fewer than {ENOUGH} responses of a backend{}",
            why()
        )
    };
    routes.found(types, notes.clone()).ok_or_else(few)
}

fn of_proxy(place: &AdminAddress) -> anyhow::Result<Found> {
    let sample = block_on(client::sample(place, &mut None));
    let sample = sample.with_context(|| format!("--proxy {place}"))?;
    let mut policies: Vec<_> = sample.in_force().collect();
    if policies.is_empty() {
        // The Wasm filter publishes the slots of a policy with the first request.
        policies = sample
            .policies
            .iter()
            .map(|(n, p)| (n.as_str(), p))
            .collect();
    }
    let [(name, policy)] = policies[..] else {
        let names: Vec<&str> = policies.iter().map(|(name, _)| *name).collect();
        bail!(
            "--proxy {place}: it runs {}; it needs one policy in DryRun with {DEFAULT_TYPE} as its \
             only type",
            match names.is_empty() {
                true => "no policy".to_owned(),
                false => names.join(" and "),
            }
        );
    };
    of_policy(policy).with_context(|| format!("--proxy {place}: policy {name}"))
}

fn of_policy(policy: &Parts<Stats>) -> anyhow::Result<Found> {
    let (names, types): (Vec<&str>, Vec<&Stats>) = of(policy, TYPE).unzip();
    let ([DEFAULT_TYPE], [stats]) = (&names[..], &types[..]) else {
        bail!(
            "it has the types {}; its only type must be {DEFAULT_TYPE}. Envoy keeps the stats of a \
             policy's former types until it restarts",
            names.join(", ")
        );
    };
    let all = measured(stats).with_context(|| {
        format!("fewer than {ENOUGH} responses measured so far; measure longer")
    })?;
    Ok(Found {
        all,
        routes: Vec::new(),
        notes: vec!["Types per route need an access log: headgate suggest access.log".to_owned()],
    })
}

/// Returns percentiles of the response times of a type in a dry run, which holds no requests.
fn measured(stats: &Stats) -> Option<Measured> {
    let spread = stats.histogram("response_time_us")?;
    let ms = |q: f64| Some(spread.quantile(q)? / 1e3);
    (spread.count() >= ENOUGH as u64).then_some(Measured {
        requests: spread.count(),
        p50_ms: ms(0.5)?,
        p90_ms: ms(0.9)?,
    })
}
