//! Wisp on a mesh of real Envoys: its example (§4.1.2), its Figures 7 and 9 at this machine's
//! scale, and faults between processes. The scenario `wisp-fig7` shows how all workflows collapse
//! without rate control, and `wisp-fig10` the quantile with closed-loop clients.
//!
//! The tests assert shares and orders, never times, because the capacity here is sleeping workers.
//! If the harness was late because the machine was busy, the run is repeated on the same mesh.
//!
//! Eight proxies that each compile the Wasm filter take longer to start than most runs take. So
//! runs that differ only in policies share a mesh that an operator reprograms, and `scripts/test`
//! uses the native filter.

use std::ops::Range;

use anyhow::{Result, bail, ensure};
use headgate_tests::http;
use headgate_tests::load;
use headgate_tests::mesh::drive;
use headgate_tests::mesh::service::ServiceStats;
use headgate_tests::mesh::topology::{Difference, Workload};
use headgate_tests::mesh::{Mesh, Topology};
use serde_json::{Value, json};

use crate::run::{
    LATE, Stats, drive_and_measure, lost_calls, measure, show, start, start_programmed, sum,
    workloads,
};

const EXAMPLE: &str = include_str!("../../meshes/wisp-example.yaml");
const AZURE_STORAGE: &str = include_str!("../../meshes/azure-storage.yaml");

/// The measured time, s. Rates settle before it.
const EXAMPLE_S: Range<f64> = 5.0..13.0;

/// Returns the services of the example with this quantile.
fn example_with(quantile: f64) -> Result<Topology> {
    let mut topology = Topology::parse(EXAMPLE)?;
    topology.policy["workflows"] = json!({
        "quantile": quantile,
        "maxQueueLength": 5,
        // The filter uses all of the capacity, as the numbers of the example do.
        "sharing": {
            "type": "BottleneckFairness",
            "bottleneckFairness": {"probe": 10, "maxUtilization": 1},
        },
    });
    Ok(topology)
}

fn show_example(quantile: f64, stats: &Stats) {
    println!("q = {quantile}");
    for (process, stats) in stats {
        println!(
            "  {process}: {:5.1}/s, of w1 {:5.1}/s; calls {:?}",
            stats.received_rps(),
            stats.workflow_rps("w1"),
            stats.calls
        );
    }
}

/// With q = 0, a1 takes the rate of the slower of e1 and e2, so e1 is partly idle. With q = 1, it
/// takes the rate of the faster, and e2 refuses the rest. With q = 0.5, the results lie in between.
/// An operator programs all sidecars, and q is edited from 0 to 1 while they work.
#[test]
fn the_example_of_the_quantile_which_is_edited() -> Result<()> {
    let mut mesh = start_programmed(&example_with(0.0)?)?;
    let [slowest, fastest] = edited_from_0_to_1(&mut mesh)?;
    let halfway = example_with(0.5)?;
    mesh.apply(&halfway)?;
    let (between, _) = drive_and_measure(&mesh, &halfway.workflows, EXAMPLE_S)?;
    for (quantile, stats) in [(0.0, &slowest), (0.5, &between), (1.0, &fastest)] {
        show_example(quantile, stats);
    }
    let all = [&slowest, &between, &fastest];
    let admitted = all.map(admitted_of_w1);
    let at_e1 = all.map(|stats| stats.get("e-1").map_or(0.0, ServiceStats::received_rps));
    let lost = all.map(|stats| lost_calls(stats, "e"));
    println!(
        "q = 0, 0.5, 1: share of w1 admitted at a1 {admitted:.2?}, e1 gets {at_e1:.1?}/s, \
         e refuses {lost:.1?}/s"
    );
    // The shares in the example are 0.75 and 1. A slow machine has longer service times, which
    // reduce all shares.
    assert!((0.5..0.88).contains(&admitted[0]), "q=0: {admitted:?}");
    assert!(admitted[2] > admitted[0] + 0.08, "{admitted:?}");
    assert!(admitted[2] > 0.75, "q=1: {admitted:?}");
    let between = admitted[0] - 0.05..admitted[2] + 0.05;
    assert!(between.contains(&admitted[1]), "{admitted:?}");
    assert!(
        at_e1[0] < 0.95 * at_e1[2],
        "e1 is as busy with q=0 as with q=1: {at_e1:?}"
    );
    assert!(lost[0] < 0.5 * lost[2], "{lost:?}");
    assert!(
        lost[2] > 5.0,
        "q=1 refuses nothing at e2: {lost:?}; 20/s in the example"
    );
    Ok(())
}

/// Returns the share of w1 that is admitted at the entry. The load offers 20/s at a1, and four
/// times that at e1 and e2.
fn admitted_of_w1(stats: &Stats) -> f64 {
    sum(stats, "a", |s| s.workflow_rps("w1")) / 20.0
}

/// Returns the counts of the example's services with q = 0 once rates have settled, and again after
/// an edit to q = 1.
fn edited_from_0_to_1(mesh: &mut Mesh) -> Result<[Stats; 2]> {
    load::undisturbed(LATE, |_| {
        mesh.apply(&example_with(0.0)?)?;
        mesh.wait_until_idle()?;
        let mut workflows = example_with(0.0)?.workflows;
        for workload in &mut workflows {
            workload.open[0].seconds = 120.0;
        }
        let driving = drive::start(mesh, &workflows)?;
        let slowest = measure(mesh, &driving, &EXAMPLE_S)?;
        mesh.apply(&example_with(1.0)?)?;
        let now = driving.elapsed_s();
        let later = now + EXAMPLE_S.start..now + EXAMPLE_S.end;
        let fastest = measure(mesh, &driving, &later)?;
        driving.stop();
        let results = driving.wait()?;
        // The edit makes no request fail: lost calls below are ignored, and requests that aren't
        // admitted are refused.
        for (name, report) in &results.workflows {
            let total = &report.total;
            assert_eq!(total.transport_errors, 0, "{name}: {total:?}");
            assert!(
                total.status.keys().all(|s| [200, 429].contains(s)),
                "{name}: {total:?}"
            );
        }
        let errors = mesh.filter_errors();
        ensure!(errors.is_empty(), "{errors:#?}");
        let lateness = results.lateness(slowest.values().chain(fastest.values()));
        Ok(([slowest, fastest], lateness))
    })
}

/// Figure 7: A–D read and write, E asks for metadata, G comes in bursts, and F exceeds its fair
/// share from `F_S` on.
const F_S: f64 = 4.0;
const ISOLATED_S: Range<f64> = 9.0..15.0;

fn isolation() -> Result<Vec<Workload>> {
    let (end, f) = (ISOLATED_S.end, ISOLATED_S.end - F_S);
    let mut text = String::new();
    for name in ["a", "b", "c", "d"] {
        text += &format!(
            "- {{name: {name}, entry: fe, path: /read-write, timeoutMs: 3000, open: [{{seconds: \
             {end}, rate: 6}}]}}\n"
        );
    }
    text += &format!(
        "
- {{name: e, entry: fe, path: /metadata, timeoutMs: 3000, open: [{{seconds: {end}, rate: 10}}]}}
- name: f
  entry: fe
  path: /read-write
  timeoutMs: 3000
  open: [{{seconds: {F_S}, rate: 0}}, {{seconds: {f}, rate: 80}}]
- {{name: g, entry: fe, path: /burst, timeoutMs: 3000, open: [{{seconds: {end}, rate: 0.5}}]}}
"
    );
    workloads(&text)
}

/// Returns Azure Storage with rate control, with `policy` merged into the policies of all services.
fn controlled(policy: Value) -> Result<Topology> {
    let mut topology = Topology::parse(AZURE_STORAGE)?;
    topology.policy["workflows"] = json!({"maxQueueLength": 10});
    topology.service_mut("fe")?.policy["workflows"] = json!({"edge": true});
    if let Value::Object(members) = policy {
        for (key, value) in members {
            topology.policy[key] = value;
        }
    }
    Ok(topology)
}

#[test]
fn figures_7_and_9_an_aggressive_workflow_and_a_hotspot() -> Result<()> {
    let mut mesh = start_programmed(&controlled(json!({}))?)?;
    the_aggressive_workflow_is_held_at_the_entry(&mut mesh)?;
    a_hotspot_is_its_makers(&mut mesh)
}

/// Figure 7: with rate control, the aggressive tenant is refused at the entry, and the others keep
/// their throughput. With fair queueing, bursts keep theirs, too.
fn the_aggressive_workflow_is_held_at_the_entry(mesh: &mut Mesh) -> Result<()> {
    let fair = json!({
        "discipline": "DRR",
        "drr": {"by": "Workflow", "quantum": "40ms"},
        "maxLength": 200,
        "timeout": "2s",
    });
    let mut bursts = Vec::new();
    for (title, policy) in [
        ("rate control", json!({})),
        ("fair queueing and rate control", json!({"queue": fair})),
    ] {
        mesh.apply(&controlled(policy)?)?;
        let (stats, results) = drive_and_measure(mesh, &isolation()?, ISOLATED_S)?;
        show(title, &results, &[0.0..F_S, ISOLATED_S]);
        println!(
            "  lost calls/s: ps {:.1}, en {:.1}",
            lost_calls(&stats, "ps"),
            lost_calls(&stats, "en")
        );
        let met = |name: &str| results.during(name, ISOLATED_S.start, ISOLATED_S.end);
        for name in ["a", "b", "c", "d", "e"] {
            assert!(
                met(name).served() > 0.75,
                "{title}: {name}: {:?}",
                met(name)
            );
        }
        let f = met("f");
        assert!(f.served() < 0.9, "{title}: f: {f:?}");
        assert!(
            f.refused > f.failed,
            "{title}: f is refused further down than where it enters: {f:?}"
        );
        bursts.push(met("g").served());
    }
    println!("bursts served: {bursts:.2?} with rate control, with fair queueing too");
    assert!(bursts[1] > 0.6, "{bursts:?}");
    Ok(())
}

/// Figure 9: one partition server serves A and B, the other serves C and D. B starts with some
/// clients, and later has twice as many.
const B_S: f64 = 4.0;
const MORE_S: f64 = 8.0;
const HOT_S: Range<f64> = 10.0..14.0;

fn a_hotspot_is_its_makers(mesh: &mut Mesh) -> Result<()> {
    let end = HOT_S.end;
    let hotspot = workloads(&format!(
        "
- {{name: a, entry: fe, path: /hot, open: [{{seconds: {end}, rate: 8}}]}}
- name: b
  entry: fe
  path: /hot
  closed:
  - {{clients: 20, fromS: {B_S}, untilS: {end}}}
  - {{clients: 20, fromS: {MORE_S}, untilS: {end}}}
- {{name: c, entry: fe, path: /cool, open: [{{seconds: {end}, rate: 8}}]}}
- {{name: d, entry: fe, path: /cool, open: [{{seconds: {end}, rate: 8}}]}}
"
    ))?;
    let mut crowded = Vec::new();
    for (title, mode) in [("without", "DryRun"), ("with rate control", "Enforce")] {
        let mut topology = controlled(json!({"mode": mode}))?;
        // The workers are the bottleneck, so there are as many slots as workers.
        let ps = topology.service_mut("ps")?;
        ps.policy = json!({"parallelism": {"total": 4}});
        mesh.apply(&topology)?;
        let (_, results) = drive_and_measure(mesh, &hotspot, HOT_S)?;
        show(title, &results, &[0.0..B_S, HOT_S]);
        let met = |name: &str| results.during(name, HOT_S.start, HOT_S.end);
        crowded.push(met("a").p50_ms);
        for name in ["a", "c", "d"] {
            assert!(met(name).served() > 0.8, "{title}: {name}: {:?}", met(name));
        }
    }
    println!(
        "a beside b: {:.0} ms without, {:.0} ms with rate control",
        crowded[0], crowded[1]
    );
    assert!(crowded[1] < 0.6 * crowded[0], "{crowded:?}");
    Ok(())
}

/// Prints the proxies' stats of some workflows, which explain a failed test.
fn show_rates(mesh: &Mesh, workflows: &[&str]) {
    for node in mesh.nodes().iter().filter(|node| node.headgate) {
        let stats = node.policy_stats().unwrap_or_default();
        for workflow in workflows {
            let prefix = format!("workflow.{workflow}.");
            let of: Vec<String> = stats
                .iter()
                .filter_map(|(name, value)| {
                    Some(format!("{}={value}", name.strip_prefix(&prefix)?))
                })
                .collect();
            println!("    {} {workflow}: {}", node.name, of.join(" "));
        }
    }
}

/// Returns the served share of a modest load, which needs every service.
fn served(mesh: &Mesh, state: &str) -> Result<f64> {
    const SECONDS: f64 = 3.0;
    let modest = workloads(&format!(
        "- {{name: modest, entry: fe, path: /read-write, timeoutMs: 3000, open: [{{seconds: \
         {SECONDS}, rate: 12}}]}}"
    ))?;
    let (_, results) = drive_and_measure(mesh, &modest, 0.0..SECONDS)?;
    let met = results.during("modest", 0.0, SECONDS);
    println!("  {state}: served {:.2}: {met:?}", met.served());
    Ok(met.served())
}

/// Fails if at most `least` of a modest load is served.
fn is_served(mesh: &Mesh, least: f64, state: &str) -> Result<()> {
    let served = served(mesh, state)?;
    if served <= least {
        show_rates(mesh, &["modest", "_other"]);
        bail!("{state}: served {served:.2}");
    }
    Ok(())
}

/// Announced rates expire with the processes that announced them, and local limits stay.
#[test]
fn rates_end_with_their_processes() -> Result<()> {
    let mut topology = controlled(json!({}))?;
    topology.service_mut("ps")?.service.call_timeout_ms = 1_000.0;
    let mut mesh = start(&topology)?;
    is_served(&mesh, 0.9, "normal")?;
    mesh.partition("en");
    assert!(served(&mesh, "extent nodes cut off")? < 0.1);
    mesh.heal("en");
    is_served(&mesh, 0.6, "extent nodes back")?;
    for name in ["ps-1", "en-2"] {
        mesh.restart_sidecar(name)?;
        is_served(&mesh, 0.6, &format!("the proxy of {name} is another"))?;
    }
    assert_eq!(mesh.filter_errors(), [] as [String; 0]);
    Ok(())
}

/// A service without Headgate passes the workflow on, because its application does. One process
/// that announces a false rate doesn't outvote the other processes. The mesh ignores headers that
/// clients write.
#[test]
fn wrong_rates_and_headers_of_neighbours_have_no_effect() -> Result<()> {
    let mut topology = controlled(json!({}))?;
    topology.service_mut("auth")?.headgate = false;
    let ps = topology.service_mut("ps")?;
    ps.differences = vec![Difference {
        process: 2,
        headgate: Some(false),
        speed: None,
        response_headers: Vec::new(),
    }];
    // This process gets a third of the partition servers' calls. A request makes two of these
    // calls, so about half of the requests meet the false rate.
    let lie = "rate=0.01, process=\"00000000deadbeef\"";
    let en = topology.service_mut("en")?;
    en.differences = vec![Difference {
        process: 1,
        headgate: Some(false),
        speed: None,
        response_headers: vec![("x-headgate-rate".to_owned(), lie.to_owned())],
    }];
    let mesh = start(&topology)?;
    is_served(&mesh, 0.8, "a hop without Headgate, a liar")?;
    flood(&mesh)?;
    // The rates have expired during the flood. The first rate that arrives may be the false one,
    // which then counts until another process announces a rate.
    is_served(&mesh, 0.6, "after a flood of headers")?;
    for node in mesh.nodes().iter().filter(|node| node.headgate) {
        let known = node.policy_stat("workflows")?;
        assert!(known <= 101, "{} knows {known} workflows", node.name);
    }
    assert_eq!(mesh.filter_errors(), [] as [String; 0]);
    Ok(())
}

/// Sends requests that each have a new workflow, with headers of the mesh that are empty or too
/// long.
fn flood(mesh: &Mesh) -> Result<()> {
    let entries = mesh.entries("fe");
    let long = "x".repeat(4_000);
    let many = format!("workflow={}", "y,".repeat(2_000));
    for n in 0..600 {
        let name = format!("workflow=tenant-{n}");
        let nonsense = format!("rate={n}e308, process=\"{long}\", elapsed=-1, ?1=");
        let headers: Vec<(&str, &str)> = match n % 4 {
            0 => vec![("baggage", &name)],
            1 => vec![
                ("baggage", &name),
                ("x-headgate-progress", &nonsense),
                ("x-headgate-rate", &nonsense),
            ],
            2 => vec![
                ("baggage", &many),
                ("x-headgate-process", &long),
                ("x-headgate-request", &long),
            ],
            _ => vec![
                ("x-headgate-workflow", &long),
                ("x-headgate-timeout-ms", "99999999999999999999"),
            ],
        };
        // Each request must be answered, whether it is served or refused.
        let answer = http::get_with(entries[n % entries.len()], "/metadata", &headers)?;
        ensure!(answer.status < 600, "{answer:?}");
    }
    Ok(())
}
