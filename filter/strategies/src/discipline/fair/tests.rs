use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::config::FilterConfig;
use crate::memory::MemoryHost;
use crate::request::TypeId;
use crate::rng::Rng;

/// The discipline under test: rounds of this quantum, µs, or tags.
#[derive(Debug, Clone, Copy)]
enum By {
    Rounds(u64),
    Tags,
}

/// Returns a fair queue of three flows by type, with these weights.
fn fair(host: &MemoryHost, by: By, weights: [f64; 3]) -> Fair {
    let json = br#"{"stages":[{"policy":"ns/p","parallelism":1,
        "queue":{"max_length":1000,"timeout_us":1000000},"strategy":{"type":"MaxQueueLength"},
        "types":[{"name":"a","matches":[{"method":"GET"}]},
                 {"name":"b","matches":[{"method":"PUT"}]},{"name":"default"}]}]}"#;
    let stage = FilterConfig::from_json(json).unwrap().stages.remove(0);
    let names = ["a", "b", "default"].map(str::to_owned);
    let weights = names.into_iter().zip(weights).collect();
    let by_type = Flow::Type;
    let discipline = match by {
        By::Rounds(quantum_us) => Discipline::Drr {
            by: by_type,
            quantum_us,
            weights,
        },
        By::Tags => Discipline::Wfq {
            by: by_type,
            weights,
            tokens: None,
        },
    };
    let fair = Fair::new(host, "p", &stage, &discipline).unwrap();
    fair.unwrap()
}

fn of(flow: usize) -> Attributes {
    Attributes::of(TypeId(flow as u16))
}

/// A request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiter {
    number: usize,
    flow: usize,
    cost: u64,
    rank: u64,
    turn: Turn,
}

/// The queue of one worker.
struct Line<'a> {
    host: &'a MemoryHost,
    fair: Fair,
    waiting: Vec<Waiter>,
    arrivals: usize,
}

impl<'a> Line<'a> {
    fn new(host: &'a MemoryHost, by: By, weights: [f64; 3]) -> Self {
        Self {
            host,
            fair: fair(host, by, weights),
            waiting: Vec::new(),
            arrivals: 0,
        }
    }

    fn arrive(&mut self, flow: usize, cost: u64) -> Waiter {
        self.arrive_as(flow, &of(flow), cost)
    }

    fn arrive_as(&mut self, flow: usize, request: &Attributes, cost: u64) -> Waiter {
        let now = Instant::from_nanos(1 << 50 | (self.arrivals as u64) << 20);
        let queued = self.waiting.len() as u32;
        let placed = self.fair.place(self.host, now, request, cost, queued);
        let (rank, turn) = placed.unwrap();
        let number = self.arrivals;
        self.arrivals += 1;
        let waiter = Waiter {
            number,
            flow,
            cost,
            rank,
            turn,
        };
        self.waiting.push(waiter);
        waiter
    }

    fn start(&mut self, number: usize) -> Waiter {
        let at = self.waiting.iter().position(|w| w.number == number);
        let waiter = self.waiting.remove(at.unwrap());
        self.fair.started(self.host, waiter.rank).unwrap();
        waiter
    }

    fn serve(&mut self) -> Option<Waiter> {
        let first = self.waiting.iter().min_by_key(|w| w.rank)?.number;
        Some(self.start(first))
    }

    fn leave(&mut self, number: usize) {
        let at = self.waiting.iter().position(|w| w.number == number);
        let waiter = self.waiting.remove(at.unwrap());
        self.fair.left(self.host, waiter.turn).unwrap();
    }

    fn round(&self) -> u64 {
        let name = format!("p.{}", self.fair.grain.round);
        self.host.value(&name).unwrap()
    }

    /// Returns the round of a waiter.
    fn round_of(&self, waiter: Waiter) -> u64 {
        self.fair.grain.layout.measure(waiter.rank)
    }

    fn finish(&self, flow: usize) -> u64 {
        let kind = ["a", "b", "default"][flow];
        let name = format!("p.type.{kind}.{}", self.fair.grain.finish);
        self.host.value(&name).unwrap_or(0)
    }
}

/// Deficit round robin as its authors print it, with deficit counters and a list of active flows.
/// The only difference is that a flow that becomes active is visited in the round in progress, with
/// the rest of its quantum.
struct Textbook {
    quanta: [u64; 3],
    deficits: [u64; 3],
    /// The last round for which each flow got its quantum.
    credited: [u64; 3],
    queues: [VecDeque<(usize, u64)>; 3],
    /// The active flows. The first `unvisited` of these have not been visited in this round.
    active: VecDeque<usize>,
    unvisited: usize,
    round: u64,
}

impl Textbook {
    fn new(quanta: [u64; 3]) -> Self {
        Self {
            quanta,
            deficits: [0; 3],
            credited: [0; 3],
            queues: Default::default(),
            active: VecDeque::new(),
            unvisited: 0,
            round: 1,
        }
    }

    fn enqueue(&mut self, number: usize, flow: usize, cost: u64) {
        self.queues[flow].push_back((number, cost));
        if !self.active.contains(&flow) {
            self.active.insert(self.unvisited, flow);
            self.unvisited += 1;
            if self.credited[flow] < self.round {
                self.deficits[flow] = 0;
            }
        }
    }

    /// Returns the next request, and the round in which it is served.
    fn dequeue(&mut self) -> Option<(usize, u64)> {
        loop {
            let flow = *self.active.front()?;
            if self.unvisited == 0 {
                self.round += 1;
                self.unvisited = self.active.len();
            }
            if self.credited[flow] < self.round {
                self.credited[flow] = self.round;
                self.deficits[flow] += self.quanta[flow];
            }
            let first = self.queues[flow].front().copied();
            if let Some((number, cost)) = first.filter(|(_, cost)| *cost <= self.deficits[flow]) {
                self.deficits[flow] -= cost;
                self.queues[flow].pop_front();
                if self.queues[flow].is_empty() {
                    self.active.pop_front();
                    self.unvisited -= 1;
                }
                return Some((number, self.round));
            }
            self.unvisited -= 1;
            self.active.rotate_left(1);
        }
    }
}

proptest! {
    /// The next request of the textbook algorithm always has the smallest rank, and its round is
    /// that rank.
    #[test]
    fn serves_in_the_rounds_of_the_textbook(
        steps in prop::collection::vec((0_usize..5, 1_u64..60_000), 1..300),
        weights in prop::array::uniform3(0_u32..3),
    ) {
        // The quantum and the weights are powers of two, so that no fraction of a round is rounded.
        let quantum = 1 << 14;
        let host = MemoryHost::new();
        let mut line = Line::new(&host, By::Rounds(quantum), weights.map(|w| f64::from(1 << w)));
        let mut textbook = Textbook::new(weights.map(|w| quantum << w));
        for (step, cost) in steps {
            if step < 3 {
                let number = line.arrive(step, cost).number;
                textbook.enqueue(number, step, cost);
            } else if let Some((number, round)) = textbook.dequeue() {
                let least = line.waiting.iter().map(|w| line.round_of(*w)).min();
                let served = line.start(number);
                prop_assert_eq!(Some(line.round_of(served)), least);
                prop_assert_eq!(line.round_of(served), round);
            } else {
                prop_assert!(line.waiting.is_empty());
            }
        }
    }

    /// While two flows have requests waiting, their service divided by their weights differs by at
    /// most a quantum plus the largest request over the smaller weight.
    #[test]
    fn backlogged_flows_get_the_shares_of_their_weights(
        quantum in 100_u64..20_000,
        weights in prop::array::uniform2(0.1_f64..8.0),
        costs in prop::collection::vec((1_u64..20_000, 1_u64..20_000, 0_u64..20_000), 400),
        third in 1_u64..20_000,
    ) {
        let host = MemoryHost::new();
        let mut line = Line::new(&host, By::Rounds(quantum), [weights[0], weights[1], 1.0]);
        let mut costs = costs.into_iter();
        let (mut served, mut largest) = ([0.0; 2], 0_u64);
        for (a, b, _) in costs.by_ref().take(20) {
            line.arrive(0, a);
            line.arrive(1, b);
            largest = largest.max(a).max(b);
        }
        for (n, (a, b, c)) in costs.enumerate() {
            // A flow that was served sends again, so that both always have requests waiting. A
            // third flow sends at times.
            let first = line.serve().unwrap();
            match first.flow {
                2 => {}
                flow => {
                    served[flow] += first.cost as f64 / weights[flow];
                    largest = largest.max(a).max(b);
                    line.arrive(flow, if flow == 0 { a } else { b });
                }
            }
            if c < third && n % 7 == 0 {
                line.arrive(2, c);
            }
            let bound = quantum as f64 + largest as f64 / weights[0].min(weights[1]);
            // The fixed point adds an error of up to one step for each request.
            let apart = (served[0] - served[1]).abs();
            prop_assert!(apart <= bound * 1.001, "{apart} apart, at most {bound}");
        }
    }

    /// No flow owes more than the maximum, for any values in the gauges and whichever requests
    /// leave.
    #[test]
    fn no_flow_is_pushed_further_than_what_it_may_owe(
        junk in prop::array::uniform3(any::<u64>()),
        round in any::<u64>(),
        steps in prop::collection::vec((0_usize..6, 1_u64..60_000, any::<usize>()), 1..200),
    ) {
        let quantum = 10_000;
        let host = MemoryHost::new();
        let mut line = Line::new(&host, By::Rounds(quantum), [1.0; 3]);
        for (flow, junk) in junk.into_iter().enumerate() {
            // The first arrival defines the gauge.
            line.arrive(flow, 1);
            let name = format!("p.type.{}.drr_finish", ["a", "b", "default"][flow]);
            let gauge = host.number(&name).unwrap();
            host.set(gauge, junk).unwrap();
        }
        let gauge = host.number("p.drr_round").unwrap();
        host.set(gauge, round).unwrap();
        line.waiting.clear();
        for (step, cost, nth) in steps {
            match step {
                0..3 => {
                    let before = line.round().min(ROUND.max_measure());
                    let queued = 2 * cost * line.waiting.len() as u64;
                    let waiter = line.arrive(step, cost);
                    let most = before + (queued.max(DEBT_US) + cost).div_ceil(quantum) + 2;
                    let round = line.round_of(waiter);
                    prop_assert!(round <= most, "{round} for {most}");
                    prop_assert!(line.finish(step) <= most << line.fair.grain.fraction);
                }
                3 | 4 => { line.serve(); }
                _ => if !line.waiting.is_empty() {
                    let number = line.waiting[nth % line.waiting.len()].number;
                    line.leave(number);
                }
            }
        }
    }
}

/// Returns a generator of weights, either the usual weights of classes of calls or arbitrary ones.
fn weights() -> impl Strategy<Value = [f64; 3]> {
    prop_oneof![
        Just([8.0, 4.0, 1.0]),
        prop::array::uniform3(0.01_f64..100.0),
    ]
}

/// Returns a generator of costs, µs, either around 0.4 ms or arbitrary ones.
fn costs() -> impl Strategy<Value = u64> {
    prop_oneof![Just(400), 200_u64..600, 1_u64..20_000]
}

proptest! {
    /// Flows that always have requests waiting get, at all times, nearly the service of an ideal
    /// fluid server that is shared by weight. The difference is bounded by a request and a tag of
    /// each flow.
    #[test]
    fn tags_share_as_a_fluid_does(
        weights in weights(),
        all in prop::collection::vec(prop::array::uniform3(costs()), 300),
    ) {
        let host = MemoryHost::new();
        let mut line = Line::new(&host, By::Tags, weights);
        let (mut largest, mut served) = ([0_u64; 3], [0.0_f64; 3]);
        let sum: f64 = weights.iter().sum();
        let unit = line.fair.grain.quantum_us;
        for (n, costs) in all.into_iter().enumerate() {
            let served_last = (n >= 20).then(|| {
                let first = line.serve().unwrap();
                served[first.flow] += first.cost as f64;
                first.flow
            });
            for flow in 0..3 {
                // A flow that was served sends another request.
                if served_last.is_none_or(|last| last == flow) {
                    line.arrive(flow, costs[flow]);
                    largest[flow] = largest[flow].max(costs[flow]);
                }
            }
            let total: f64 = served.iter().sum();
            for flow in 0..3 {
                let fluid = total * weights[flow] / sum;
                // The service of two flows differs by at most a request of each over its weight,
                // and a tag for each. The bound is the sum of these differences over the other
                // flows.
                let bound: f64 = (0..3).filter(|other| *other != flow).map(|other| {
                    let over = |f: usize| largest[f] as f64 / weights[f] + 2.0 * unit;
                    weights[flow] * weights[other] / sum * (over(flow) + over(other))
                }).sum();
                let apart = (served[flow] - fluid).abs();
                prop_assert!(
                    apart <= bound * 1.001 + 1.0,
                    "{flow}: {apart} µs apart, at most {bound}"
                );
            }
        }
    }

    /// With any load of the other flows, each request ends hardly later than on a separate server
    /// with the speed of its flow's share. The delay is at most one request of each flow, one
    /// request that found the server idle, and tags.
    #[test]
    fn tags_guarantee_each_flow_its_share(
        weights in weights(),
        all in prop::collection::vec((0_usize..3, costs(), 0_u64..2_000), 1..300),
    ) {
        let host = MemoryHost::new();
        let mut line = Line::new(&host, By::Tags, weights);
        let sum: f64 = weights.iter().sum();
        let largest = all.iter().map(|(_, cost, _)| *cost).max().unwrap_or(0) as f64;
        let slack = 4.0 * largest + 4.0 * sum * line.fair.grain.quantum_us;
        // By flow, the time at which its separate server ends all requests so far. By number, the
        // time at which that server ends the request.
        let (mut own, mut due) = ([0.0_f64; 3], Vec::new());
        let mut arrivals = all.into_iter().scan(0, |at, (flow, cost, gap)| {
            *at += gap;
            Some((*at, flow, cost))
        }).peekable();
        // The current time. While the server is busy, also the time at which it becomes free, and
        // the number of the request that it serves.
        let (mut now, mut busy): (u64, Option<(u64, usize)>) = (0, None);
        loop {
            let arrives = arrivals.peek().map_or(u64::MAX, |arrival| arrival.0);
            let ends = busy.map_or(u64::MAX, |(at, _)| at);
            if arrives == u64::MAX && ends == u64::MAX {
                break;
            }
            now = now.max(arrives.min(ends));
            if ends <= arrives {
                let number = busy.take().unwrap().1;
                let late = now as f64 - due[number];
                prop_assert!(late <= slack, "{late} µs late, at most {slack}");
                busy = line.serve().map(|next| (now + next.cost, next.number));
            } else {
                let (at, flow, cost) = arrivals.next().unwrap();
                own[flow] = own[flow].max(at as f64) + cost as f64 * sum / weights[flow];
                due.push(own[flow]);
                if busy.is_none() {
                    // The request finds the slot free, and takes no turn.
                    busy = Some((now + cost, line.arrivals));
                    line.arrivals += 1;
                } else {
                    line.arrive(flow, cost);
                }
            }
        }
    }
}

/// Shows the purpose of tags, at weights of 8 : 4 : 1 and 0.4 ms a request. In a backlog of all
/// three flows, the test counts the requests served of each flow and measures the longest run of
/// one flow.
#[test]
fn tags_interleave_where_rounds_serve_flows_in_runs() {
    let runs = |by: By| {
        let host = MemoryHost::new();
        let mut line = Line::new(&host, by, [8.0, 4.0, 1.0]);
        for n in 0..600 {
            line.arrive(n / 200, 400);
        }
        let order: Vec<usize> = (0..260).map(|_| line.serve().unwrap().flow).collect();
        let counts = [0, 1, 2].map(|flow| order.iter().filter(|f| **f == flow).count());
        let longest = order.chunk_by(|a, b| a == b).map(<[usize]>::len).max();
        (counts, longest.unwrap())
    };
    let (counts, longest) = runs(By::Tags);
    assert_eq!(counts, [160, 80, 20]);
    assert!(longest <= 3, "{longest}");
    // The least quantum that policies allow is 1 ms. A round then has 8 ms of the heaviest flow.
    let (_, longest) = runs(By::Rounds(1_000));
    assert!(longest >= 20, "{longest}");
}

#[test]
fn without_measurements_requests_are_served_in_order_of_arrival() {
    let host = MemoryHost::new();
    let mut line = Line::new(&host, By::Rounds(10_000), [1.0; 3]);
    for n in 0..30 {
        line.arrive(n * 7 % 3, 0);
    }
    let order: Vec<usize> = std::iter::from_fn(|| line.serve())
        .map(|w| w.number)
        .collect();
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn an_empty_flow_saves_nothing_up_and_owes_nothing() {
    let host = MemoryHost::new();
    let mut line = Line::new(&host, By::Rounds(10_000), [1.0; 3]);
    for _ in 0..50 {
        line.arrive(0, 10_000);
    }
    for _ in 0..20 {
        line.serve();
    }
    // Flow b was idle for 20 rounds. It now gets one turn in each round, and no more.
    for _ in 0..20 {
        line.arrive(1, 10_000);
    }
    let order: Vec<usize> = (0..20)
        .filter_map(|_| line.serve())
        .map(|w| w.flow)
        .collect();
    let turns = order.iter().filter(|f| **f == 1).count();
    assert!((10..=11).contains(&turns), "{order:?}");
    // The clients of flow a give up. Flow a may then send again at once.
    while let Some(gone) = line.waiting.iter().find(|w| w.flow == 0).map(|w| w.number) {
        line.leave(gone);
    }
    let back = line.arrive(0, 10_000);
    assert!(line.round_of(back) <= line.round() + 1);
}

#[test]
fn rounds_start_over_before_they_end() {
    let host = MemoryHost::new();
    let mut line = Line::new(&host, By::Rounds(100), [1.0; 3]);
    let gauge = host.number("p.drr_round").unwrap();
    host.set(gauge, ROUND.max_measure() - 1).unwrap();
    line.waiting.push(line_filler());
    let ranks: Vec<u64> = (0..4).map(|_| line.arrive(0, 100).rank).collect();
    assert!(
        ranks
            .iter()
            .all(|r| ROUND.measure(*r) <= ROUND.max_measure())
    );
    assert!(
        ranks.is_sorted(),
        "the last round is first come, first served"
    );
    while line.serve().is_some() {}
    let first = line.arrive(0, 100);
    assert!(line.round_of(first) <= 3);
}

/// Returns a waiter that keeps the queue non-empty.
fn line_filler() -> Waiter {
    Waiter {
        number: usize::MAX,
        flow: 1,
        cost: 100,
        rank: 0,
        turn: Turn {
            flow: 1,
            share: 0,
            at: 0,
        },
    }
}

#[test]
fn workers_that_queue_at_the_same_moment_lose_no_cost() {
    let host = MemoryHost::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut fair = fair(&host, By::Rounds(1 << 14), [1.0; 3]);
                for n in 0..2_000 {
                    let now = Instant::from_nanos(1 << 50);
                    let (_, turn) = fair.place(&host, now, &of(1), 1 << 14, 1_000_000).unwrap();
                    if n % 4 == 0 {
                        fair.left(&host, turn).unwrap();
                    }
                }
            });
        }
    });
    let name = "p.type.b.drr_finish";
    assert_eq!(host.value(name), Some(4 * 1_500 * Grain::rounds(1).one()));
}

/// A request that took more or less time than expected moves the waiting requests of its flow.
#[test]
fn the_time_of_a_request_moves_the_waiting_requests_of_its_flow() {
    let host = MemoryHost::new();
    let mut line = Line::new(&host, By::Rounds(10_000), [1.0; 3]);
    let waiting: Vec<Waiter> = (0..4).map(|_| line.arrive(1, 10_000)).collect();
    assert_eq!(
        waiting
            .iter()
            .map(|w| line.round_of(*w))
            .collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    let ended = |line: &mut Line<'_>, waiter: Waiter, taken_us| {
        let turn = Some(waiter.turn);
        line.fair
            .ended(&host, &of(1), turn, 0, (waiter.cost, taken_us))
            .unwrap();
    };
    let rank = |line: &mut Line<'_>, waiter: Waiter| {
        let rank = line
            .fair
            .rank(&host, 1, waiter.turn.at, Instant::from_nanos(0));
        ROUND.measure(rank.unwrap())
    };
    let first = line.start(0);
    ended(&mut line, first, 75_000);
    assert_eq!(rank(&mut line, waiting[1]), 9, "6.5 rounds more");
    assert_eq!(line.finish(1), 21 << 19, "10.5 rounds for all of them");
    let second = line.start(1);
    ended(&mut line, second, 0);
    assert_eq!(rank(&mut line, waiting[2]), 9, "a round less");
    assert_eq!(line.finish(1), 19 << 19);
}

/// Requests of a type that ended before its mean was known were charged the mean of all types. The
/// type's mean now includes their actual time. A ratio to the expected time would count this time
/// twice.
#[test]
fn a_flow_that_is_a_type_is_charged_its_mean() {
    let host = MemoryHost::new();
    let mut line = Line::new(&host, By::Rounds(10_000), [1.0; 3]);
    for _ in 0..100 {
        line.fair
            .ended(&host, &of(1), None, 0, (1_000, 10_000))
            .unwrap();
    }
    let waiter = line.arrive(1, 10_000);
    assert_eq!(line.round_of(waiter), 1);
}

/// Two flows always have requests waiting, and share tokens by weight. The prompts and outputs of
/// one flow are a hundred times as long as those of the other, and outputs can't be predicted.
#[test]
fn flows_share_tokens_whatever_the_time_of_their_requests() {
    let host = MemoryHost::new();
    let mut line = Line::new(&host, By::Tags, [1.0, 3.0, 1.0]);
    let cost = TokenCost {
        input: 1.0,
        output: 2.0,
    };
    line.fair.tokens = Some(cost);
    let size = [10, 1_000];
    let sized = |flow: usize| Attributes {
        size: Some(size[flow]),
        ..of(flow)
    };
    let mut rng = Rng::new(1);
    let mut served = [0_u64; 2];
    for flow in [0, 0, 1, 1] {
        line.arrive_as(flow, &sized(flow), 0);
    }
    for n in 0..40_000 {
        let waiter = line.serve().unwrap();
        let flow = waiter.flow;
        // Slot times must have no effect.
        let took = (1_000, 1 + n % 100_000);
        let output = (rng.next_f64() * 2.0 * f64::from(size[flow])) as u32;
        let (request, turn) = (sized(flow), Some(waiter.turn));
        (line.fair)
            .ended(&host, &request, turn, output, took)
            .unwrap();
        if n >= 1_000 {
            served[flow] += charge(cost, &request, output);
        }
        line.arrive_as(flow, &request, 0);
    }
    let share = served[1] as f64 / (served[0] + served[1]) as f64;
    assert!((share - 0.75).abs() < 0.01, "{share}");
}
