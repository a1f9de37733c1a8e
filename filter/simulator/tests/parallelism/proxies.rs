//! Several proxies in front of one service. Each proxy has its own process, its own requests, and
//! one engine or more in its process, as the worker threads of a proxy with the Wasm filter.

use std::rc::Rc;

use crate::memory::MemoryHost;
use headgate_core::config::{FilterConfig, StageConfig};
use headgate_core::decision::{Action, Arrival, Decision, Origin, PolicyId, Ticket};
use headgate_core::engine::{Engine, FAST_TICK, SLOW_TICK};
use headgate_core::stage::Outcome;
use headgate_simulator::backend::Backend;
use headgate_simulator::{Request, Source};
use headgate_strategies::request::Attributes;
use headgate_strategies::strategy::TypeId;
use headgate_strategies::time::{Instant, nanos};

use crate::service::{SECOND, Service, in_time};

const POLICY: PolicyId = PolicyId(0);

/// A change under load.
#[derive(Clone, Copy)]
pub(crate) enum Change<'a> {
    /// The policy has another version.
    Edit(&'a StageConfig),
    /// Each process gets new workers. The old workers keep the requests that they have.
    Reload,
}

/// An engine with its process.
struct Worker {
    proxy: usize,
    host: Rc<MemoryHost>,
    engine: Engine,
    ticked: u64,
}

impl Worker {
    fn start(host: &Rc<MemoryHost>, proxy: usize, seed: u64, stage: &StageConfig, at: u64) -> Self {
        let mut worker = Self {
            proxy,
            host: Rc::clone(host),
            engine: Engine::new(seed),
            ticked: at,
        };
        worker.configure(stage, at);
        let start = Instant::from_nanos(at);
        (worker.engine)
            .join(&**host, start, &mut Vec::new())
            .unwrap();
        worker
    }

    /// Configures the engine. Returns the actions on requests that wait.
    fn configure(&mut self, stage: &StageConfig, at: u64) -> Vec<Action> {
        let config = FilterConfig {
            stages: vec![stage.clone()],
            ..FilterConfig::default()
        };
        let (now, mut actions) = (Instant::from_nanos(at), Vec::new());
        (self.engine)
            .configure(&*self.host, now, &config, &mut actions)
            .unwrap();
        actions
    }

    /// Returns the time of the worker's next tick.
    fn next_tick(&self) -> u64 {
        let busy = self.engine.is_busy();
        self.ticked + nanos(if busy { FAST_TICK } else { SLOW_TICK })
    }
}

#[derive(Clone, Copy)]
struct Job {
    worker: usize,
    request: Request,
    ticket: Option<Ticket>,
}

/// The results of a run.
pub(crate) struct Shared {
    /// P after each second, by proxy.
    pub(crate) slots: Vec<Vec<u32>>,
    /// Answers within the objective at p90 per second after the warm-up.
    pub(crate) goodput: f64,
    /// The numbers of all requests and of requests answered within the objective at p90, by type
    /// and second of arrival.
    kinds: Vec<Vec<(u32, u32)>>,
    /// Refused requests by second of arrival.
    refused: Vec<u32>,
}

impl Shared {
    /// Returns three numbers for these seconds: all requests, requests answered within the
    /// objective at p90, and requests refused.
    pub(crate) fn totals(&self, seconds: std::ops::Range<usize>) -> [f64; 3] {
        let mut totals = [0.0; 3];
        for second in seconds {
            for (came, good) in self.kinds.iter().filter_map(|kind| kind.get(second)) {
                totals[0] += f64::from(*came);
                totals[1] += f64::from(*good);
            }
            totals[2] += f64::from(self.refused.get(second).copied().unwrap_or(0));
        }
        totals
    }

    /// Returns the ratio of a type's requests in these seconds that were answered within the
    /// objective at p90.
    pub(crate) fn in_time(&self, kind: usize, seconds: std::ops::Range<usize>) -> f64 {
        in_time(&self.kinds[kind], seconds)
    }
}

/// Runs `service` with its requests distributed over this number of proxies, with this number of
/// workers each.
pub(crate) fn run(
    service: &Service,
    processes: (usize, usize),
    fixed: Option<u32>,
    backend: impl Backend,
) -> Shared {
    run_changing(service, processes, &service.stage(fixed), backend, None)
}

/// Runs `service` as [`run`] does, with `stage` until the change at this time, ns.
pub(crate) fn run_changing(
    service: &Service,
    (proxies, workers): (usize, usize),
    stage: &StageConfig,
    mut backend: impl Backend,
    mut change: Option<(u64, Change<'_>)>,
) -> Shared {
    let workload = service.workload();
    let mut source = workload.steady(service.per_second(), service.seed);
    let hosts: Vec<_> = (0..proxies).map(|_| Rc::new(MemoryHost::new())).collect();
    let count = proxies * workers;
    // Threads don't tick at the same time.
    let ticked = |n: usize| nanos(FAST_TICK) * n as u64 / count as u64;
    let start = |n: usize, seed: u64, at: u64| {
        let proxy = n % proxies;
        Worker {
            ticked: at + ticked(n),
            ..Worker::start(&hosts[proxy], proxy, seed, stage, at)
        }
    };
    let mut all: Vec<Worker> = (0..count).map(|n| start(n, n as u64 + 1, 0)).collect();
    let (mut jobs, mut free): (Vec<Job>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut slots = vec![Vec::new(); proxies];
    let mut kinds = vec![Vec::<(u32, u32)>::new(); service.kinds.len()];
    let mut refused = vec![0; service.seconds as usize + 1];
    let (mut now, mut next_second, mut good, mut dealt) = (0, SECOND, 0_u64, 0);
    loop {
        let (arrival, end) = (source.peek().unwrap(), backend.next_end());
        let ticks = all.iter().map(Worker::next_tick).enumerate();
        let (ticking, tick) = ticks.min_by_key(|(_, at)| *at).unwrap();
        // A worker with a request that waits ticks sooner than was planned.
        now = arrival.min(end).min(tick.max(now));
        if now > service.seconds * SECOND {
            let goodput = good as f64 / (service.seconds - service.warm_up) as f64;
            return Shared {
                slots,
                goodput,
                kinds,
                refused,
            };
        }
        while next_second <= now {
            next_second += SECOND;
            for worker in &all[..proxies] {
                slots[worker.proxy].extend(worker.engine.parallelism(POLICY));
            }
        }
        let at = Instant::from_nanos(now);
        let (mut actions, mut sent) = (Vec::new(), Vec::new());
        let due = change.take_if(|(due, _)| *due <= now);
        let acted = if let Some((_, change)) = due {
            match change {
                Change::Edit(stage) => {
                    let edited = all.iter_mut().map(|worker| worker.configure(stage, now));
                    actions.extend(edited.flatten());
                }
                Change::Reload => {
                    let seed = all.len() as u64;
                    all.extend((0..count).map(|n| start(n, seed + n as u64 + 1, now)));
                }
            }
            0
        } else if end == now {
            let Some(stream) = backend.end(now) else {
                continue;
            };
            let job = jobs[stream as usize];
            free.push(stream);
            let limit = service.kinds[job.request.kind].4[1] * 1_000_000;
            let failed = backend.failed();
            let in_time = !failed && now - job.request.at <= limit;
            good += u64::from(now > service.warm_up * SECOND && in_time);
            kinds[job.request.kind][(job.request.at / SECOND) as usize].1 += u32::from(in_time);
            let Some(ticket) = job.ticket else {
                continue;
            };
            let outcome = if failed {
                Outcome::Failed
            } else {
                Outcome::Completed
            };
            let Worker { host, engine, .. } = &mut all[job.worker];
            engine
                .finish(&**host, at, ticket, outcome, &mut actions)
                .unwrap();
            job.worker
        } else if tick <= now {
            let worker = &mut all[ticking];
            worker.ticked = now;
            worker.engine.tick(&*worker.host, at, &mut actions).unwrap();
            worker.engine.suspects().clear();
            ticking
        } else {
            let Some(request) = source.take() else {
                continue;
            };
            dealt = all.len() - count + (dealt + 1) % count;
            let seconds = &mut kinds[request.kind];
            let second = (request.at / SECOND) as usize;
            seconds.resize(seconds.len().max(second + 1), (0, 0));
            seconds[second].0 += 1;
            let job = Job {
                worker: dealt,
                request,
                ticket: None,
            };
            let stream = free.pop().unwrap_or_else(|| {
                jobs.push(job);
                jobs.len() as u32 - 1
            });
            jobs[stream as usize] = job;
            let Worker { host, engine, .. } = &mut all[dealt];
            let arrival = Arrival {
                stream,
                attributes: Attributes::of(TypeId(request.kind as u16)),
                origin: Origin::default(),
            };
            match engine
                .admit(&**host, at, POLICY, &arrival, &mut actions)
                .unwrap()
            {
                Decision::Forward(ticket) => {
                    jobs[stream as usize].ticket = Some(ticket);
                    sent.push(stream);
                }
                Decision::Hold(ticket) => jobs[stream as usize].ticket = Some(ticket),
                Decision::Refuse(_) => {
                    refused[second] += 1;
                    free.push(stream);
                }
                Decision::PassBy => sent.push(stream),
            }
            dealt
        };
        // A free slot goes to the worker whose waiting request is first.
        let proxy = all[acted].proxy;
        while let Some(Worker { host, engine, .. }) =
            (all.iter_mut().filter(|worker| worker.proxy == proxy)).find(|worker| {
                let id = worker.engine.worker();
                id.is_some_and(|id| worker.host.take_wakes(id) > 0)
            })
        {
            engine.woken(&**host, at, &mut actions).unwrap();
        }
        for action in actions {
            match action {
                Action::Resume { stream, .. } => sent.push(stream),
                Action::Refuse { stream, .. } => {
                    refused[(jobs[stream as usize].request.at / SECOND) as usize] += 1;
                    free.push(stream);
                }
                Action::Send { .. } => {}
            }
        }
        for stream in sent {
            backend.take(now, stream, &jobs[stream as usize].request);
        }
    }
}
