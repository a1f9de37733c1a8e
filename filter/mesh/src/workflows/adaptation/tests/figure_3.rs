//! The paper's example (§4.1.2, Figure 3). Three workflows of 100 requests/s each enter at a₁. Of
//! w₁, 400 requests/s reach each of e₁ and e₂. Of w₂, 100 requests/s reach each of e₁ and e₂. Of
//! w₃, 100 requests/s reach only e₂. Every process can serve 500 requests/s.
//!
//! ```text
//! w₁: a₁ ─2→ b₁ ─1→ c₁, c₂ ─1→ e₁, e₂        w₂: a₁ ─1→ b₁ ─1→ e₁, e₂        w₃: a₁ ─1→ b₁ ─1→ e₂
//! ```
//!
//! Processes run in lockstep. Each process limits its admissions to exactly its σ, keeping
//! fractions of requests for the next interval, and refuses the rest.

use std::collections::BTreeMap;

use super::*;

/// The service time of a request. With 2 ms, one slot serves 500 requests/s.
const COST: Duration = Duration::from_millis(2);
const SOURCE: usize = usize::MAX;
/// The services of a₁, b₁, c₁, c₂, e₁ and e₂.
const SERVICES: [u16; 6] = [0, 1, 2, 2, 3, 3];
const E1: usize = 4;
const E2: usize = 5;

struct Server {
    adaptation: Process,
    /// The calls of a request, by workflow: the called process and the number of calls.
    calls: [Vec<(usize, u64)>; 3],
    /// Requests that arrived in this interval, by workflow and sender.
    inbox: BTreeMap<(usize, usize), u64>,
    /// The unused rate of earlier intervals, in requests, by workflow.
    tokens: [f64; 3],
    admitted: [u64; 3],
    refused: [u64; 3],
}

struct Mesh {
    processes: Vec<Server>,
    interval: u64,
}

fn id(process: usize) -> ProcessId {
    ProcessId(process.wrapping_add(1) as u64 + 1)
}

impl Mesh {
    fn new(q: f64) -> Self {
        let calls: [[&[(usize, u64)]; 3]; 6] = [
            [&[(1, 2)], &[(1, 1)], &[(1, 1)]],
            [&[(2, 1), (3, 1)], &[(4, 1), (5, 1)], &[(5, 1)]],
            [&[(4, 1), (5, 1)], &[], &[]],
            [&[(4, 1), (5, 1)], &[], &[]],
            [&[], &[], &[]],
            [&[], &[], &[]],
        ];
        let process = |calls: [&[(usize, u64)]; 3]| Server {
            adaptation: Process::new(&config(q, bottleneck(1.0))),
            calls: calls.map(<[_]>::to_vec),
            inbox: BTreeMap::new(),
            tokens: [0.0; 3],
            admitted: [0; 3],
            refused: [0; 3],
        };
        Self {
            processes: calls.map(process).into(),
            interval: 0,
        }
    }

    /// Runs one interval, in which requests flow from a₁ to the leaves and every process adapts.
    fn step(&mut self, demand: [u64; 3]) {
        let now = at(self.interval);
        self.interval += 1;
        for (w, rps) in demand.into_iter().enumerate() {
            self.processes[0].inbox.insert((w, SOURCE), rps / 10);
        }
        // The processes are in the order in which requests flow.
        for p in 0..self.processes.len() {
            self.serve(p, now);
        }
    }

    fn serve(&mut self, p: usize, now: Instant) {
        let inbox = std::mem::take(&mut self.processes[p].inbox);
        let mut measured = Measurements::default();
        for w in 0..3 {
            let workflow = WorkflowId(w as u16 + 1);
            let of_w = || inbox.iter().filter(|((of, _), _)| *of == w);
            let offered: u64 = of_w().map(|(_, count)| count).sum();
            let process = &mut self.processes[p];
            let rate = process.adaptation.rate(workflow);
            // The unused rate of an interval may be used in the next interval. 7 and 8 requests in
            // turn are 75 requests/s.
            let tokens = (process.tokens[w] + rate / 10.0).min(rate / 5.0 + 1.0);
            let admitted = offered.min(tokens as u64);
            process.tokens[w] = tokens - admitted as f64;
            process.admitted[w] = admitted;
            process.refused[w] = offered - admitted;
            let spent = COST * admitted as u32;
            measured.busy += spent;
            *measured.workflow(workflow) = Measured {
                offered,
                completed: admitted,
                service: spent,
                answered: admitted,
                completion: spent,
                ..Measured::default()
            };
            for ((_, from), &count) in of_w() {
                measured.arrived((workflow, id(*from)), count);
            }
            for (d, number) in process.calls[w].clone() {
                let count = admitted * number;
                let callee = (workflow, ServiceId(SERVICES[d]), id(d));
                measured.called(callee, count);
                *self.processes[d].inbox.entry((w, p)).or_default() += count;
                // The answers of process `d` have its announcement of the last interval.
                if let Some(rate) = self.processes[d].adaptation.announced(workflow, id(p)) {
                    measured.heard(callee, rate, now);
                }
            }
        }
        run(&mut self.processes[p].adaptation, now, &measured);
    }

    fn rate(&self, p: usize, w: u16) -> f64 {
        self.processes[p].adaptation.rate(WorkflowId(w))
    }
}

/// Means and ranges over many intervals, requests/s.
#[derive(Debug, Clone, Copy)]
struct Seen {
    sigma: f64,
    low: f64,
    high: f64,
    dropped_e2: f64,
    spare_e1: f64,
    admitted: [f64; 3],
}

fn observe(mesh: &mut Mesh, intervals: u64, demand: [u64; 3]) -> Seen {
    let mut seen = Seen {
        sigma: 0.0,
        low: f64::INFINITY,
        high: 0.0,
        dropped_e2: 0.0,
        spare_e1: 0.0,
        admitted: [0.0; 3],
    };
    let n = intervals as f64;
    for _ in 0..intervals {
        mesh.step(demand);
        let sigma = mesh.rate(0, 1).min(demand[0] as f64);
        seen.sigma += sigma / n;
        seen.low = seen.low.min(sigma);
        seen.high = seen.high.max(sigma);
        let sum = |counts: [u64; 3]| counts.iter().sum::<u64>() as f64 * 10.0;
        seen.dropped_e2 += sum(mesh.processes[E2].refused) / n;
        seen.spare_e1 += (500.0 - sum(mesh.processes[E1].admitted)) / n;
        for (mean, count) in seen.admitted.iter_mut().zip(mesh.processes[0].admitted) {
            *mean += count as f64 * 10.0 / n;
        }
    }
    seen
}

#[test]
fn the_quantile_trades_utilization_for_dropped_requests() {
    for (q, sigma, dropped, spare) in [
        (0.0, 75.0, 0.0, 100.0),
        // Q interpolates between the 75 that c₁ and c₂ would get from e₂ and the 100 that they get
        // from e₁.
        (0.5, 87.5, 50.0, 50.0),
        (1.0, 100.0, 100.0, 0.0),
    ] {
        let mut mesh = Mesh::new(q);
        let warm = observe(&mut mesh, 100, [100; 3]);
        let seen = observe(&mut mesh, 1_000, [100; 3]);
        let near = |a: f64, b: f64, band: f64| (a - b).abs() <= band;
        assert!(near(seen.sigma, sigma, 0.1), "q={q}: {seen:?} {warm:?}");
        assert!(near(seen.dropped_e2, dropped, 0.5), "q={q}: {seen:?}");
        assert!(near(seen.spare_e1, spare, 0.5), "q={q}: {seen:?}");
        // σ stays in this band for 1,000 intervals, which are 100 s.
        assert!(
            seen.low >= sigma - 0.1 && seen.high <= sigma + 0.1,
            "q={q}: {seen:?}"
        );
        // Workflows that stay within their shares lose nothing.
        assert!(
            near(seen.admitted[1], 100.0, 0.1) && near(seen.admitted[2], 100.0, 0.1),
            "{seen:?}"
        );
    }
}

#[test]
fn a_change_at_the_last_hop_reaches_the_first() {
    let mut mesh = Mesh::new(0.0);
    observe(&mut mesh, 200, [100; 3]);
    // w₂ and w₃ stop, so e₂ can serve only w₁.
    let mut intervals = 0;
    while mesh.rate(0, 1) < 99.0 {
        mesh.step([100, 0, 0]);
        intervals += 1;
        assert!(intervals < 50, "{}", mesh.rate(0, 1));
    }
    let mut intervals = 0;
    while mesh.rate(0, 1) > 76.0 {
        mesh.step([100; 3]);
        intervals += 1;
        assert!(intervals < 50, "{}", mesh.rate(0, 1));
    }
}
