//! Runs every query of every dashboard, and every alert, on a real Prometheus that scrapes real
//! Envoys under overload and a real operator.
//!
//! If `HEADGATE_PICTURES` names a folder, the test also draws the dashboards there from the same
//! query results.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::dashboard::run::{Shown, run};
use headgate_tests::dashboard::{Bindings, Dashboard, Kind, picture};
use headgate_tests::fleet::Fleet;
use headgate_tests::load::{self, LoadSpec, RequestType, Running};
use headgate_tests::prometheus::{self, INTERVAL, Job, Prometheus, promtool, unix};
use headgate_tests::wait::until;
use headgate_tests::{headgate, http, mix, policy};
use regex_lite::Regex;
use serde_json::{Value, json};

const P: usize = 6;
/// The ratio of processing times to the paper's, and the ratio of load to capacity. In tests,
/// requests are few, and alerts fire at this load. For pictures, requests are enough for smooth
/// lines, and requests of all types are answered.
const OF_TESTS: (f64, f64) = (16.0, 1.6);
const OF_PICTURES: (f64, f64) = (4.0, 1.15);
/// The time under overload before the first query. `rate()` needs several scrapes, and Envoy's
/// histograms need several flushes.
const WARMUP: Duration = Duration::from_secs(20);
/// The duration of the load. It is far longer than the test, which stops the load at its end.
const LOAD: Duration = Duration::from_secs(600);

/// Rows whose queries need the metrics of an API server's client. `k8s::dashboards` runs these
/// queries.
const NEEDS_API_SERVER: &[&str] = &["API server"];
/// The largest number of names in a legend that readers can tell apart.
const LEGEND: usize = 6;
/// The dashboard whose queries need a policy with workflows.
const WORKFLOWS: &str = "headgate-workflows";

const RULES: [&str; 4] = [
    "recording.yaml",
    "policies.yaml",
    "operator.yaml",
    "workflows.yaml",
];

/// Returns the folder for the pictures of dashboards, if the environment names one.
fn pictures() -> Option<PathBuf> {
    std::env::var_os("HEADGATE_PICTURES").map(PathBuf::from)
}

fn scale_and_load() -> (f64, f64) {
    match pictures() {
        None => OF_TESTS,
        Some(_) => OF_PICTURES,
    }
}

fn alerts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/headgate/alerts")
}

fn rule_files() -> Vec<PathBuf> {
    RULES.map(|name| alerts().join(name)).to_vec()
}

/// Returns `policy` with another name and with the Service of this name as its target.
fn named(mut policy: Value, name: &str) -> Value {
    policy["metadata"]["name"] = json!(name);
    policy["spec"]["targetRefs"][0]["name"] = json!(name);
    policy
}

fn policies() -> Vec<Value> {
    let mix = mix::bouncer(scale_and_load().0);
    let mut search = policy::for_mix(P, &mix);
    let mut trial = named(search.clone(), "trial");
    // The budget is larger than the number of tokens that requests in all slots take.
    let tokens = json!({"budget": 100 * P, "output": {"otherwise": 10}});
    search["spec"]["parallelism"] = json!({"perEndpoint": P, "tokens": tokens});
    search["spec"]["strategy"] = json!({"type": "Bouncer", "bouncer": {"shedByValue": true}});
    trial["spec"]["mode"] = json!("DryRun");
    let mut mail = named(
        policy::policy(P, &[json!({"name": "default", "slo": {"p90": "500ms"}})]),
        "mail",
    );
    mail["spec"]["strategy"] = json!({
        "type": "ResponseTimeController",
        "responseTimeController": {
            "percentile": 90,
            "classTargets": {"free": "2s"},
            "degradation": {"minQuality": 0.1},
        },
    });
    mail["spec"]["classes"] = json!([
        {"name": "paying", "matches": [{"headers": [{"name": "x-plan", "value": "paying"}]}]},
        {"name": "free"},
    ]);
    let mut trades = named(policy::queue_only(P, 1_000), "trades");
    trades["spec"]["strategy"] = json!({
        "type": "BacklogControl",
        "backlogControl": {
            "target": "200ms",
            "cost": {"type": "Header", "header": "x-headgate-cost"},
        },
    });
    trades["spec"]["types"][0]["tpot"] = json!({"p90": "1s"});
    let mut orders = named(policy::queue_only(P, 1_000), "orders");
    orders["spec"]["workflows"] = json!({
        "sharing": {"type": "StaticGuarantees"},
        "named": [{"name": "bulk", "guarantee": BULK}, {"name": "web", "guarantee": 1_000}],
    });
    vec![search, trial, mail, trades, orders]
}

/// The rate limit of a workflow whose clients send more, requests/s.
const BULK: f64 = 8.0;

/// Returns a load of two workflows with 30 requests/s each.
fn of_workflows(addr: SocketAddr) -> LoadSpec {
    let of =
        |name: &str| RequestType::get(name, "/").header("baggage", &format!("workflow={name}"));
    LoadSpec::new(addr, vec![of("bulk"), of("web")], 60.0, LOAD)
}

/// The fleet under load: two proxies of one policy, and one proxy of each other policy.
struct World {
    fleet: Fleet,
    prometheus: Prometheus,
    began: SystemTime,
    /// The time from which the dashboards of policies are shown. For pictures, this time is after
    /// the warm-up.
    shown_from: SystemTime,
    _loads: Vec<Running>,
}

fn world() -> Result<World> {
    let mix = mix::bouncer(scale_and_load().0);
    let mut backend = BackendConfig::for_mix(40 * P, &mix);
    backend
        .types
        .push(ServiceType::constant("/", Duration::from_millis(20)));
    let mut fleet = Fleet::start(&backend, &policies())?;
    for (name, target) in [
        ("search-1", "search"),
        ("search-2", "search"),
        ("trial-1", "trial"),
        ("mail-1", "mail"),
        ("trades-1", "trades"),
        ("orders-1", "orders"),
    ] {
        fleet.add_proxy(name, &format!("Service/default/{target}"), "default")?;
    }
    fleet.wait_for_streams("Running", 6)?;
    let pod = |name: &str, namespace: &str| {
        let labels = [("namespace", namespace), ("pod", name)];
        labels
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>()
    };
    let proxies = fleet.proxies.iter();
    let jobs = [
        Job {
            name: "proxies".to_owned(),
            path: "/stats/prometheus".to_owned(),
            targets: proxies
                .map(|(name, p)| (p.envoy.admin(), pod(name, "default")))
                .collect(),
        },
        Job {
            name: "headgate".to_owned(),
            path: "/metrics".to_owned(),
            targets: vec![(fleet.headgate.admin(), pod("headgate-1", "headgate-system"))],
        },
    ];
    let prometheus = Prometheus::start(&jobs, &rule_files())?;
    prometheus.wait_for_scrape("proxies", SystemTime::now())?;
    prometheus.wait_for_scrape("headgate", SystemTime::now())?;

    let began = SystemTime::now();
    let rate = scale_and_load().1 * mix::capacity_rps(&mix, P);
    let mut loads = Vec::new();
    for (name, proxy) in &fleet.proxies {
        let spec = match name.as_str() {
            "mail-1" | "trades-1" => {
                // A response of two tokens.
                let any = RequestType::get("any", "/?stream=2");
                LoadSpec::new(proxy.addr, vec![any], 40.0, LOAD)
            }
            "orders-1" => of_workflows(proxy.addr),
            _ => LoadSpec::for_mix(proxy.addr, &mix, rate, LOAD),
        };
        loads.push(load::start(spec)?);
    }
    // An edit causes another plan, and the proxies acknowledge its configuration.
    let mut mail = policies().swap_remove(2);
    mail["spec"]["types"][0]["slo"]["p90"] = json!("600ms");
    fleet.write_policy_file("mail.yaml", &mail.to_string())?;
    prometheus.wait_for("increase(headgate_xds_acks_total[10s])")?;
    prometheus.wait_for_scrape("proxies", began + WARMUP)?;
    prometheus.wait_for_scrape("headgate", SystemTime::now())?;
    let mut shown_from = began;
    if pictures().is_some() {
        shown_from += WARMUP;
        prometheus.wait_for_scrape("proxies", shown_from + 2 * WARMUP)?;
    }
    Ok(World {
        fleet,
        prometheus,
        began,
        shown_from,
        _loads: loads,
    })
}

impl World {
    /// Runs a dashboard for the time until now. The dashboard of policies begins at `shown_from`,
    /// and the others begin at the start of the load.
    fn run(&self, dashboard: &Dashboard, wanted: &[(&str, &str)]) -> Result<Vec<Shown>> {
        let bindings = Bindings::resolve(dashboard, &self.prometheus, wanted)?;
        let from = match dashboard.uid == "headgate-policy" {
            true => self.shown_from,
            false => self.began,
        };
        let span = (unix(from), unix(SystemTime::now()));
        let shown = run(dashboard, &bindings, &self.prometheus, span)?;
        if let Some(folder) = pictures() {
            let name = match wanted.first() {
                Some((_, value)) => format!("{}-{}.svg", dashboard.uid, value.replace('/', "-")),
                None => format!("{}.svg", dashboard.uid),
            };
            let draw = |shown: &[Shown], width| {
                picture::svg(dashboard, shown, &bindings.shown(), span, width)
            };
            std::fs::write(folder.join(&name), draw(&shown, picture::OF_SCREEN))?;
            // These rows fit on a page.
            let mut short = shown.clone();
            short.retain(|s| ["Decisions", "Objectives"].contains(&s.row.as_str()));
            if !short.is_empty() {
                std::fs::write(
                    folder.join(format!("short-{name}")),
                    draw(&short, picture::OF_PAGE),
                )?;
            }
        }
        Ok(shown)
    }
}

/// Causes the faults that dashboards and alerts show, so that the queries for faults have values.
fn provoke(world: &mut World) -> Result<()> {
    let World {
        fleet, prometheus, ..
    } = world;
    // A policy that is refused, and a file with an invalid content.
    let mut bad = named(policy::queue_only(P, 10), "bad");
    bad["spec"]["parallelism"] = json!({"total": 0});
    fleet.write_policy_file("bad.yaml", &bad.to_string())?;
    fleet.write_policy_file("broken.yaml", "kind: [")?;
    prometheus.wait_for("headgate_policies_accepted{status=\"false\"}")?;
    prometheus.wait_for("headgate_source_problems")?;
    // A proxy whose certificate is for another namespace than that of the target that it claims.
    fleet.add_proxy("stranger", "Service/default/search", "elsewhere")?;
    prometheus.wait_for("increase(headgate_xds_streams_refused_total[1m])")?;
    // A well-formed module that is no filter. Only Envoy can detect this mistake.
    fleet.replace_module(b"\0asm\x01\0\0\0")?;
    fleet.wait_for_streams("Rejected", 6)?;
    prometheus.wait_for("headgate_xds_proxy_streams{state=\"rejected\"}")?;
    prometheus.wait_for("increase(headgate_xds_nacks_total[1m])")?;
    // The last point of a range may be up to one step before the end of the range.
    prometheus.wait_for_scrape("headgate", SystemTime::now() + 2 * INTERVAL)
}

#[test]
fn no_query_of_a_dashboard_is_empty_and_every_alert_knows_its_metrics() -> Result<()> {
    if !prometheus::can_run()? {
        return Ok(());
    }
    let mut world = world()?;
    let dashboards = Dashboard::all()?;
    ensure!(dashboards.len() == 4, "{} dashboards", dashboards.len());

    let mut empty = BTreeSet::new();
    for dashboard in &dashboards {
        if dashboard.uid == WORKFLOWS {
            let shown = world.run(dashboard, &[("policy", "default/orders")])?;
            empty.extend(long_legends(&shown));
            empty.extend(
                empty_queries(&shown)
                    .iter()
                    .map(|(title, at)| format!("{}: {title}: query {at}", dashboard.title)),
            );
        } else if dashboard.uid == "headgate-policy" {
            // Some panels apply only to some strategies. Each panel must have values for at least
            // one strategy.
            let mut everywhere: Option<BTreeSet<(String, usize)>> = None;
            for name in ["search", "trial", "mail", "trades"] {
                let policy = format!("default/{name}");
                let shown = world.run(dashboard, &[("policy", &policy)])?;
                let here = empty_queries(&shown);
                empty.extend(long_legends(&shown));
                if name == "search" {
                    let others = ["ontrol", "token", "tpot"];
                    let is_others = |title: &str| others.iter().any(|of| title.contains(of));
                    let odd = here.iter().filter(|(title, _)| !is_others(title));
                    empty.extend(odd.map(|(title, at)| format!("search: {title}: query {at}")));
                }
                everywhere = Some(match everywhere {
                    Some(before) => before.intersection(&here).cloned().collect(),
                    None => here,
                });
            }
            let never = everywhere.unwrap_or_default();
            empty.extend(
                never
                    .iter()
                    .map(|(title, at)| format!("{title}: query {at}")),
            );
        } else {
            let shown = world.run(dashboard, &[])?;
            empty.extend(long_legends(&shown));
            let here = empty_queries(&shown);
            empty.extend(
                here.iter()
                    .map(|(title, at)| format!("{}: {title}: query {at}", dashboard.title)),
            );
        }
    }
    assert!(empty.is_empty(), "no value, or too many:\n{empty:#?}");
    plausible(&world)?;

    provoke(&mut world)?;
    let operator = dashboards.iter().find(|d| d.uid == "headgate-operator");
    let shown = world.run(operator.context("no headgate-operator")?, &[])?;
    for (panel, series) in [
        ("Not accepted", ""),
        ("Not enforced", ""),
        ("Other problems", ""),
        ("Streams of proxies by state", "rejected"),
        ("Pushes and answers", "NACK"),
        ("Streams accepted and refused", "refused"),
    ] {
        let shown = shown.iter().find(|s| s.title == panel).context(panel)?;
        let mut named = shown.named().into_iter();
        let found = named.find(|(name, _)| series.is_empty() || name == series);
        let points = found.map(|(_, s)| s.points.clone()).unwrap_or_default();
        assert!(
            points.iter().any(|p| p.1 > 0.0),
            "{panel}, {series}: {points:?}"
        );
    }
    alerts_hold(&world)
}

/// Returns the titles of panels and the positions of those of their queries that have no value.
fn empty_queries(shown: &[Shown]) -> BTreeSet<(String, usize)> {
    let mut empty = BTreeSet::new();
    for shown in shown {
        if shown.panel.kind == Kind::Row || NEEDS_API_SERVER.contains(&shown.row.as_str()) {
            continue;
        }
        for query in shown.empty() {
            let at = shown.queries.iter().position(|q| q == query);
            empty.insert((shown.title.clone(), at.unwrap_or_default()));
        }
    }
    empty
}

/// Returns the panels whose legends have more than [`LEGEND`] names.
fn long_legends(shown: &[Shown]) -> impl Iterator<Item = String> {
    let curves = shown.iter().filter(|s| s.panel.kind == Kind::TimeSeries);
    let long = curves.filter(|s| s.legend_entries() > LEGEND);
    long.map(|s| format!("{}: {} in the legend", s.title, s.legend_entries()))
}

/// Checks that the values are plausible for an overload.
fn plausible(world: &World) -> Result<()> {
    let value = |expression: &str| -> Result<f64> {
        let answer = world.prometheus.query(expression)?;
        let point = answer.first().and_then(|s| s.points.last());
        Ok(point.with_context(|| format!("{expression}: no value"))?.1)
    };
    let between = |expression: &str, least: f64, most: f64| -> Result<()> {
        // A proxy whose scrape timed out has no value until the next scrape.
        until(expression, || match value(expression) {
            Ok(value) if (least..=most).contains(&value) => Ok(()),
            other => Err(format!("{other:?}, not in {least}..={most}")),
        })
    };
    let search = "headgate_policy=\"default/search\"";
    between(&format!("sum(headgate_slots{{{search}}})"), 12.0, 12.0)?;
    between(
        &format!("count(count by (pod) (headgate_slots{{{search}}}))"),
        2.0,
        2.0,
    )?;
    between(
        "max(headgate:rq_rejected_enforced:ratio_rate5m{headgate_policy=\"default/search\"})",
        0.1,
        1.0,
    )?;
    between(
        "sum(headgate:rq_rejected_enforced:rate5m{headgate_policy=\"default/trial\"})",
        0.0,
        0.0,
    )?;
    between(
        "sum(rate(headgate_rq_rejected{headgate_policy=\"default/trial\"}[10s]))",
        1.0,
        1e6,
    )?;
    between(
        "avg(headgate:slo_quantile:ratio{headgate_objective=\"p90\"})",
        0.9,
        0.9,
    )?;
    between(
        "max by (headgate_objective) \
         (headgate_slo_response_time_us_objective{headgate_type=\"fast\",\
         headgate_objective=\"p50\"})",
        18_000.0 * scale_and_load().0,
        18_000.0 * scale_and_load().0,
    )?;
    let bulk = "headgate_policy=\"default/orders\", headgate_workflow=\"bulk\"";
    between(
        &format!("sum(headgate_workflow_rate_mhz{{{bulk}}}) / 1e3"),
        BULK,
        BULK,
    )?;
    between(
        &format!("sum(rate(headgate_workflow_rq_rate_limited{{{bulk}}}[10s]))"),
        5.0,
        30.0,
    )?;
    between("min(headgate:rq_slo_met:ratio_rate5m)", 0.0, 1.0)?;
    between("max(headgate:slots_in_use:ratio)", 0.5, 1.5)?;
    // No metric's name contains a part of the name of a worker's own stats.
    let stray = "count({__name__=~\"headgate_.*(worker_?[0-9]|default_search|type_|policy_).*\"})";
    let stray = world.prometheus.query(stray)?;
    assert!(stray.is_empty(), "{stray:?}");
    Ok(())
}

/// Returns all rules with the state that Prometheus reports.
fn rules(world: &World) -> Result<Vec<Value>> {
    let groups = world.prometheus.rules()?;
    let groups = groups["groups"].as_array().cloned().unwrap_or_default();
    let of = |group: &Value| group["rules"].as_array().cloned().unwrap_or_default();
    Ok(groups.iter().flat_map(of).collect())
}

/// Checks that the expression of every alert refers only to existing metrics, and that the alerts
/// for the provoked faults are pending or firing.
fn alerts_hold(world: &World) -> Result<()> {
    let rules = rules(world)?;
    ensure!(rules.len() > 20, "{} rules", rules.len());
    let metric = Regex::new(r"\b(headgate:[a-z_0-9:]+|(?:headgate|envoy_wasm)_[a-z_0-9]+)\b")?;
    let labels = [
        "headgate_policy",
        "headgate_type",
        "headgate_objective",
        "headgate_workflow",
    ];
    let mut missing = BTreeSet::new();
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule:#}");
        let query = rule["query"].as_str().unwrap_or_default();
        for found in metric.find_iter(query).map(|m| m.as_str()) {
            if labels.contains(&found) || found.starts_with("headgate_kubernetes_") {
                continue;
            }
            if world
                .prometheus
                .query(&format!("count({found})"))?
                .is_empty()
            {
                missing.insert(format!("{}: {found}", rule["name"]));
            }
        }
    }
    assert!(missing.is_empty(), "no such metrics:\n{missing:#?}");

    let provoked = [
        "HeadgateRefusalsHigh",
        "HeadgatePolicyNotAccepted",
        "HeadgatePolicyNotProgrammed",
        "HeadgateConfigurationRejected",
        "HeadgateStreamsRefused",
        "HeadgateSourceProblems",
    ];
    let others = [
        "HeadgateOperatorDown",
        "HeadgateNoLeader",
        "HeadgateSeveralLeaders",
        "HeadgateCertificateExpiring",
        "HeadgateFailOpen",
    ];
    // Rules are evaluated every 2 s. After a scrape of the operator that timed out, an alert about
    // the operator may hold until the next scrape.
    until("the alerts of what was provoked, and no others", || {
        let rules = self::rules(world).map_err(|e| e.to_string())?;
        let holds = |name: &&str| {
            let rule = rules.iter().find(|r| r["name"] == *name);
            let state = rule.and_then(|r| r["state"].as_str()).unwrap_or_default();
            matches!(state, "pending" | "firing")
        };
        let missing: Vec<&str> = provoked.into_iter().filter(|name| !holds(name)).collect();
        let wrong: Vec<&str> = others.into_iter().filter(holds).collect();
        match missing.is_empty() && wrong.is_empty() {
            true => Ok(()),
            false => Err(format!("not {missing:?}, but {wrong:?}: {rules:#?}")),
        }
    })
}

#[test]
fn alerts_fire_and_clear() -> Result<()> {
    if !prometheus::can_run()? {
        return Ok(());
    }
    let folder = alerts();
    let rules = RULES;
    promtool(&[&["check", "rules"][..], &rules[..]].concat(), &folder, "")?;
    let tests = [
        "tests/policies.yaml",
        "tests/operator.yaml",
        "tests/workflows.yaml",
    ];
    promtool(&[&["test", "rules"][..], &tests[..]].concat(), &folder, "")?;

    // Each alert needs a test case in which it fires and a case in which it doesn't.
    let read = |name: &&str| -> Result<Value> {
        let text = std::fs::read_to_string(folder.join(name))?;
        serde_saphyr::from_str(&text).with_context(|| (*name).to_owned())
    };
    let mut seen = BTreeMap::<String, (usize, usize)>::new();
    for file in tests.iter().map(read).collect::<Result<Vec<_>>>()? {
        for case in file["tests"].as_array().into_iter().flatten() {
            for check in case["promql_expr_test"].as_array().into_iter().flatten() {
                let expression = check["expr"].as_str().unwrap_or_default();
                let name = expression.split('"').nth(1).unwrap_or_default();
                let (fires, silent) = seen.entry(name.to_owned()).or_default();
                match check["exp_samples"].as_array().map_or(0, Vec::len) {
                    0 => *silent += 1,
                    _ => *fires += 1,
                }
            }
        }
    }
    for file in rules.iter().map(read).collect::<Result<Vec<_>>>()? {
        for group in file["groups"].as_array().into_iter().flatten() {
            for rule in group["rules"].as_array().into_iter().flatten() {
                let Some(name) = rule["alert"].as_str() else {
                    continue;
                };
                let (fires, silent) = seen.get(name).copied().unwrap_or_default();
                assert!(
                    fires >= 1 && silent >= 2,
                    "{name}: fires {fires} times, is silent {silent} times; before and after is \
                     wanted"
                );
                for text in ["summary", "description", "runbook"] {
                    let said = rule["annotations"][text].as_str().unwrap_or_default();
                    assert!(said.len() > 20, "{name} has no {text}");
                }
                assert!(rule["labels"]["severity"].is_string(), "{name}");
            }
        }
    }
    Ok(())
}

/// Checks the conventions of Grafana for provisioned dashboards.
#[test]
fn dashboards_keep_to_conventions() -> Result<()> {
    for dashboard in Dashboard::all()? {
        let json = &dashboard.json;
        let name = &dashboard.uid;
        assert!(dashboard.title.starts_with("Headgate / "), "{name}");
        assert!(json["schemaVersion"].as_u64() >= Some(36), "{name}");
        assert!(
            json["id"].is_null(),
            "{name}: an id is an installation's own"
        );
        let list = json["templating"]["list"].as_array().context("variables")?;
        assert_eq!(list[0]["type"], "datasource", "{name}");
        let mut ids = BTreeSet::new();
        for panel in &dashboard.panels {
            let title = &panel.title;
            assert!(ids.insert(panel.json["id"].as_u64()), "{name}: {title}: id");
            let [x, _, w, _] = panel.grid();
            assert!(x + w <= 24.0, "{name}: {title}");
            if panel.kind == Kind::Row {
                continue;
            }
            let said = panel.json["description"].as_str().unwrap_or_default();
            assert!(said.len() > 20, "{name}: {title} has no description");
            if panel.kind != Kind::Table {
                let unit = &panel.json["fieldConfig"]["defaults"]["unit"];
                assert!(unit.is_string(), "{name}: {title} has no unit");
            }
            if panel.kind == Kind::TimeSeries {
                // With this mode, a type has the same color in all panels.
                let color = &panel.json["fieldConfig"]["defaults"]["color"]["mode"];
                assert_eq!(color, "palette-classic-by-name", "{name}: {title}");
            }
            assert!(!panel.targets.is_empty(), "{name}: {title}");
            for target in &panel.targets {
                assert!(!target.legend.is_empty(), "{name}: {title}");
            }
            let mut sources = vec![&panel.json["datasource"]];
            let targets = panel.json["targets"].as_array().into_iter().flatten();
            sources.extend(targets.map(|t| &t["datasource"]));
            for source in sources {
                assert_eq!(source["uid"], "${datasource}", "{name}: {title}");
            }
        }
    }
    Ok(())
}

/// The format of the metrics is the same for all clients, such as Prometheus and curl.
#[test]
fn the_operators_metrics_are_openmetrics() -> Result<()> {
    let fleet = Fleet::start(
        &BackendConfig::constant(1, Duration::ZERO),
        &[policy::queue_only(1, 1)],
    )?;
    let metrics = http::get(fleet.headgate.admin(), "/metrics")?;
    assert_eq!(
        metrics.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(metrics.body.ends_with("# EOF\n"), "{}", metrics.body);
    Ok(())
}

/// The README lists the tags that users add to the bootstraps of their own Envoys. These tags equal
/// the tags that `headgate bootstrap` writes.
#[test]
fn the_readme_has_the_tags_that_the_bootstrap_has() -> Result<()> {
    let readme = std::fs::read_to_string(headgate_tests::dashboard::folder().join("README.md"))?;
    let written = headgate::run_command(&["bootstrap", "--upstream=127.0.0.1:1"])?;
    let stats = written.split_once("stats_config:").context("no stats")?.1;
    let mut lines = 0;
    for line in stats.lines().skip(1).take_while(|l| l.starts_with(' ')) {
        assert!(readme.contains(line.trim()), "not in the README: {line}");
        lines += 1;
    }
    ensure!(lines > 12, "{lines} lines");
    Ok(())
}
