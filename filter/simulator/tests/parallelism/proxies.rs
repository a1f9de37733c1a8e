//! Several proxies in front of one service, each with its own process and its own requests, and
//! with one engine or more in each process: the worker threads of a proxy with the Wasm filter.

use std::rc::Rc;

use crate::memory::MemoryHost;
use headgate_core::config::FilterConfig;
use headgate_core::decision::{Action, Arrival, Decision, PolicyId, Ticket};
use headgate_core::engine::{Engine, FAST_TICK, SLOW_TICK};
use headgate_core::refusal::Origin;
use headgate_core::request::Attributes;
use headgate_core::stage::Outcome;
use headgate_core::strategy::TypeId;
use headgate_core::time::{Instant, nanos};
use headgate_simulator::backend::Backend;
use headgate_simulator::{Request, Source};

use crate::service::{SECOND, Service, in_time};

const POLICY: PolicyId = PolicyId(0);

/// An engine with its process.
struct Worker {
    proxy: usize,
    host: Rc<MemoryHost>,
    engine: Engine,
    ticked: u64,
}

impl Worker {
    /// Returns the time of its next tick.
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
    /// The requests, and those of them answered within the objective at p90, by type and second of
    /// arrival.
    kinds: Vec<Vec<(u32, u32)>>,
}

impl Shared {
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
    (proxies, workers): (usize, usize),
    fixed: Option<u32>,
    mut backend: impl Backend,
) -> Shared {
    let workload = service.workload();
    let mut source = workload.steady(service.per_second(), service.seed);
    let hosts: Vec<_> = (0..proxies).map(|_| Rc::new(MemoryHost::new())).collect();
    let mut all: Vec<Worker> = (0..proxies * workers)
        .map(|n| {
            let proxy = n % proxies;
            let host = Rc::clone(&hosts[proxy]);
            let mut engine = Engine::new(n as u64 + 1);
            let config = FilterConfig {
                stages: vec![service.stage(fixed)],
                ..FilterConfig::default()
            };
            let start = Instant::default();
            engine
                .configure(&*host, start, &config, &mut Vec::new())
                .unwrap();
            engine.join(&*host, start, &mut Vec::new()).unwrap();
            // Threads don't tick at the same time.
            let ticked = nanos(FAST_TICK) * n as u64 / (proxies * workers) as u64;
            Worker {
                proxy,
                host,
                engine,
                ticked,
            }
        })
        .collect();
    let (mut jobs, mut free): (Vec<Job>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut slots = vec![Vec::new(); proxies];
    let mut kinds = vec![Vec::<(u32, u32)>::new(); service.kinds.len()];
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
        let acted = if end == now {
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
            dealt = (dealt + 1) % all.len();
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
                origin: Origin::UNKNOWN,
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
                Decision::Refuse(_) => free.push(stream),
                Decision::PassBy => sent.push(stream),
            }
            dealt
        };
        // A slot that is free goes to the worker with the first waiter.
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
                Action::Refuse { stream, .. } => free.push(stream),
                Action::Send { .. } => {}
            }
        }
        for stream in sent {
            backend.take(now, stream, &jobs[stream as usize].request);
        }
    }
}
