//! Brokers that run Bouncer in front of shards that run AcceptFraction, as on LIquid (Bouncer
//! §5.4). Of twelve Envoys, four admit queries, and eight admit the calls of these queries to the
//! shards.

use std::ops::Range;

use anyhow::Result;
use headgate_tests::mesh::Topology;
use headgate_tests::mesh::drive::Span;
use serde_json::{Value, json};

use crate::run::{drive_and_measure, lost_calls, show, start_programmed, sum};

const TWO_TIERS: &str = include_str!("../../meshes/two-tiers.yaml");

/// The measured time, s. Overload begins at 5 s.
const MEASURED_S: Range<f64> = 9.0..21.0;

/// The results with one policy of the brokers.
struct Met {
    node: Span,
    path: Span,
    batch: Span,
    /// Share of the brokers' calls to shards that were refused or lost.
    lost: f64,
}

impl Met {
    /// Returns the share of all queries that were answered while their client waited.
    fn in_time(&self) -> f64 {
        let all = [&self.node, &self.path];
        let sum = |count: fn(&Span) -> u64| all.map(count).iter().sum::<u64>() as f64;
        sum(|span| span.ok) / sum(|span| span.offered)
    }

    /// Returns the share of admitted queries whose client hung up, or that failed.
    fn late(&self) -> f64 {
        let all = [&self.node, &self.path];
        let sum = |count: fn(&Span) -> u64| all.map(count).iter().sum::<u64>() as f64;
        sum(|span| span.failed) / sum(|span| span.ok + span.failed)
    }
}

/// Returns the mesh with this strategy at the brokers.
fn brokers_with(strategy: Value) -> Result<Topology> {
    let mut topology = Topology::parse(TWO_TIERS)?;
    topology.service_mut("broker")?.policy["strategy"] = strategy;
    Ok(topology)
}

/// Two tiers as in Bouncer §5.4. With Bouncer, brokers refuse early, and refuse most of the
/// costliest queries. So admitted queries are answered in time, and the brokers' calls to shards
/// are admitted. With only a bound on the queue's length, brokers spend their time on queries whose
/// clients have given up. A batch job calls the shards directly. They refuse a part of its calls,
/// because AcceptFraction limits their utilization to 80%.
#[test]
fn brokers_refuse_what_would_be_late_and_shards_what_does_not_come_through_brokers() -> Result<()> {
    let bouncer = Topology::parse(TWO_TIERS)?;
    let max_queue_length = brokers_with(json!({"type": "MaxQueueLength"}))?;
    let mut mesh = start_programmed(&bouncer)?;
    let mut met = Vec::new();
    for (title, topology) in [("Bouncer", &bouncer), ("MaxQueueLength", &max_queue_length)] {
        mesh.apply(topology)?;
        let (stats, results) = drive_and_measure(&mesh, &topology.workflows, MEASURED_S)?;
        show(title, &results, &[MEASURED_S]);
        let sent = sum(&stats, "broker", |s| {
            s.calls
                .get("shard")
                .map_or(0.0, |calls| calls.sent as f64 / s.seconds)
        });
        let during = |name: &str| results.during(name, MEASURED_S.start, MEASURED_S.end);
        let this = Met {
            node: during("node"),
            path: during("path"),
            batch: during("batch"),
            lost: lost_calls(&stats, "shard") / sent,
        };
        println!(
            "  {:.2} in time; {:.2} of what was let in late; {:.3} of {sent:.0} calls/s of shards \
             lost",
            this.in_time(),
            this.late(),
            this.lost
        );
        met.push(this);
    }
    let [bouncer, max_queue_length] = &met[..] else {
        unreachable!("two policies ran")
    };
    let refused = bouncer.node.refused + bouncer.path.refused;
    assert!(refused > 0, "brokers refuse nothing: no overload");
    assert!(
        bouncer.node.served() > bouncer.path.served() + 0.2,
        "brokers refuse node queries as path queries, which cost four times as much"
    );
    let batch = &bouncer.batch;
    let share = batch.refused as f64 / batch.offered as f64;
    assert!(
        (0.3..0.7).contains(&share),
        "shards refuse {share:.2} of the batch job"
    );
    assert!(bouncer.late() < 0.15, "{:.2} late", bouncer.late());
    assert!(bouncer.lost < 0.02, "{:.3} of the calls lost", bouncer.lost);
    assert!(
        bouncer.in_time() > 1.2 * max_queue_length.in_time(),
        "{:.2} in time, {:.2} with MaxQueueLength",
        bouncer.in_time(),
        max_queue_length.in_time()
    );
    Ok(())
}
