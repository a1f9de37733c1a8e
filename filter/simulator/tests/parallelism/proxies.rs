//! Several proxies in front of one service, each with its own process and its own requests.

use crate::memory::MemoryHost;
use headgate_core::config::FilterConfig;
use headgate_core::decision::{Action, Arrival, Decision, PolicyId, Ticket};
use headgate_core::engine::Engine;
use headgate_core::refusal::Origin;
use headgate_core::request::Attributes;
use headgate_core::stage::Outcome;
use headgate_core::strategy::TypeId;
use headgate_core::time::Instant;
use headgate_simulator::backend::Backend;
use headgate_simulator::{Request, Source};

use crate::service::paced::Paced;
use crate::service::{SECOND, Service};

const POLICY: PolicyId = PolicyId(0);
const TICK: u64 = SECOND / 100;

struct Proxy {
    host: MemoryHost,
    engine: Engine,
}

#[derive(Clone, Copy)]
struct Job {
    proxy: usize,
    request: Request,
    ticket: Option<Ticket>,
}

/// The results of a run.
pub(crate) struct Shared {
    /// P after each second, by proxy.
    pub(crate) slots: Vec<Vec<u32>>,
    /// Answers within the objective at p90 per second after the warm-up.
    pub(crate) goodput: f64,
}

/// Runs `service` with its requests distributed over this number of proxies.
pub(crate) fn run(
    service: &Service,
    proxies: usize,
    fixed: Option<u32>,
    mut backend: Paced,
) -> Shared {
    let workload = service.workload();
    let mut source = workload.steady(service.per_second(), service.seed);
    let mut all: Vec<Proxy> = (0..proxies)
        .map(|n| {
            let host = MemoryHost::new();
            let mut engine = Engine::new(n as u64);
            let config = FilterConfig {
                stages: vec![service.stage(fixed)],
                ..FilterConfig::default()
            };
            engine
                .configure(&host, Instant::default(), &config, &mut Vec::new())
                .unwrap();
            engine
                .join(&host, Instant::default(), &mut Vec::new())
                .unwrap();
            Proxy { host, engine }
        })
        .collect();
    let (mut jobs, mut free): (Vec<Job>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut slots = vec![Vec::new(); proxies];
    let (mut next_tick, mut good, mut dealt) = (TICK, 0_u64, 0);
    loop {
        let (arrival, end) = (source.peek().unwrap(), backend.next_end());
        let now = arrival.min(end).min(next_tick);
        if now > service.seconds * SECOND {
            let goodput = good as f64 / (service.seconds - service.warm_up) as f64;
            return Shared { slots, goodput };
        }
        let at = Instant::from_nanos(now);
        let mut actions = Vec::new();
        let mut sent = Vec::new();
        if end == now {
            let Some(stream) = backend.end(now) else {
                continue;
            };
            let job = jobs[stream as usize];
            free.push(stream);
            let limit = service.kinds[job.request.kind].4[1] * 1_000_000;
            let counts = now > service.warm_up * SECOND && now - job.request.at <= limit;
            good += u64::from(counts);
            let proxy = &mut all[job.proxy];
            let Some(ticket) = job.ticket else {
                continue;
            };
            proxy
                .engine
                .finish(&proxy.host, at, ticket, Outcome::Completed, &mut actions)
                .unwrap();
        } else if next_tick == now {
            next_tick += TICK;
            for (proxy, slots) in all.iter_mut().zip(&mut slots) {
                proxy.engine.tick(&proxy.host, at, &mut actions).unwrap();
                if now.is_multiple_of(SECOND) {
                    slots.extend(proxy.engine.parallelism(POLICY));
                }
            }
        } else {
            let Some(request) = source.take() else {
                continue;
            };
            dealt = (dealt + 1) % proxies;
            let job = Job {
                proxy: dealt,
                request,
                ticket: None,
            };
            let stream = free.pop().unwrap_or_else(|| {
                jobs.push(job);
                jobs.len() as u32 - 1
            });
            jobs[stream as usize] = job;
            let proxy = &mut all[dealt];
            let arrival = Arrival {
                stream,
                attributes: Attributes::of(TypeId(request.kind as u16)),
                origin: Origin::UNKNOWN,
            };
            match proxy
                .engine
                .admit(&proxy.host, at, POLICY, &arrival, &mut actions)
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
