use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use headgate_core::config::FilterConfig;
use headgate_core::decision::{Action, Decision};
use headgate_core::engine::Engine;
use headgate_core::ledger::{Ledger, Tokens};
use headgate_strategies::shared::Counter;
use headgate_strategies::time::Instant;

use super::*;
use crate::memory::{Fault, MemoryHost, MemoryRequest};

/// The common prefix of names such as `headgate.worker.0.heartbeat_ms`, and of policies' gauges.
const EVERYTHING: &str = "headgate.";

/// Sends 20 simultaneous requests to two workers with P = 2. Returns the number of these requests
/// that reach the backend.
fn in_backend_at_once(host: &impl Host) -> usize {
    let json = br#"{"revision":"r","stages":[{"policy":"ns/p","parallelism":2,
        "queue":{"max_length":100,"timeout_us":1000000},"strategy":{"type":"MaxQueueLength"},
        "service_times":{"interval_us":1000000,"min_samples":10},"types":[{"name":"default"}]}]}"#;
    let config = FilterConfig::from_json(json).unwrap();
    let start = Instant::from_nanos(1_000_000_000_000);
    let mut actions = Vec::new();
    let mut workers: Vec<Engine> = (1..=2).map(Engine::new).collect();
    for worker in &mut workers {
        worker
            .configure(host, start, &config, &mut actions)
            .unwrap();
    }
    let mut forwarded = 0;
    for stream in 0..20 {
        let now = start + Duration::from_millis(u64::from(stream));
        let worker = &mut workers[stream as usize % 2];
        let request = MemoryRequest::get("/");
        let admission = worker.arrive(host, now, stream, &request, None, &mut actions);
        forwarded += usize::from(matches!(admission, Ok(Decision::Forward(_))));
    }
    let resumed = |action: &&Action| matches!(action, Action::Resume { .. });
    forwarded + actions.iter().filter(resumed).count()
}

#[test]
fn the_limit_holds_when_the_stats_matcher_rejects_its_gauges() {
    for rejected in [EVERYTHING, "slots_in_use", "queue_packed", ".worker."] {
        let memory = MemoryHost::new();
        memory.reject(rejected);
        let bare = in_backend_at_once(&memory);
        let memory = MemoryHost::new();
        memory.reject(rejected);
        let host = Unfiltered::new(&memory);
        assert_eq!(in_backend_at_once(&host), 2, "{rejected} rejected");
        assert!(
            host.take_rejected()
                .is_some_and(|name| name.contains(rejected))
        );
        if rejected == "slots_in_use" {
            assert_eq!(bare, 20, "else this test shows nothing");
        }
    }
}

#[test]
fn state_that_is_not_rejected_stays_in_gauges() {
    let memory = MemoryHost::new();
    let host = Unfiltered::new(&memory);
    assert_eq!(in_backend_at_once(&host), 2);
    assert_eq!(host.take_rejected(), None);
    assert!(
        memory
            .keys()
            .iter()
            .all(|key| !key.starts_with("headgate/state/"))
    );
}

#[test]
fn counts_add_up_whatever_stats_the_process_rejects() {
    for rejected in ["c", "another"] {
        let memory = MemoryHost::new();
        memory.reject(rejected);
        // Each worker has its own host. So each tests whether the number is kept, if nothing was
        // counted yet.
        let worker = || {
            let host = Unfiltered::new(&memory);
            (Counter::new(&host, "c").unwrap(), host, 0)
        };
        let exchange = |workers: &mut [(Counter, Unfiltered<&MemoryHost>, u64)]| {
            for (counter, host, known) in workers {
                counter.publish(host).unwrap();
                *known += counter.others(host).unwrap();
            }
        };
        let mut workers = [(); 3].map(|()| worker());
        for n in 0..90 {
            let (counter, _, known) = &mut workers[n % 3];
            counter.count(1);
            *known += 1;
            if n % 7 == 0 {
                exchange(&mut workers);
            }
        }
        (0..2).for_each(|_| exchange(&mut workers));
        assert_eq!(workers.map(|(_, _, known)| known), [90; 3]);
        // Counts from before the worker existed are ignored.
        let (mut late, host, _) = worker();
        assert_eq!(late.others(&host), Ok(0));
    }
}

/// A gauge is tested by additions, because a worker that joins may define gauges that others use.
#[test]
fn defining_state_leaves_it_as_it_was() {
    let memory = MemoryHost::new();
    for value in [0, 1, -1, -2, -3, 7] {
        let name = format!("state{value}");
        let gauge = memory.number(&name).unwrap();
        memory.add_to(gauge, value).unwrap();
        let host = Unfiltered::new(&memory);
        let defined = host.number(&name).unwrap();
        assert_eq!(defined, gauge, "{value} is no sign of a rejected gauge");
        assert_eq!(host.get(defined).unwrap().cast_signed(), value);
    }
}

#[test]
fn contending_workers_never_own_more_than_p_slots_in_shared_data() {
    const P: u32 = 3;
    let memory = MemoryHost::new();
    memory.reject("s.");
    let (owners, most) = (AtomicI64::new(0), AtomicI64::new(0));
    thread::scope(|scope| {
        for worker in 0..4 {
            let (memory, owners, most) = (&memory, &owners, &most);
            scope.spawn(move || {
                let host = Unfiltered::new(memory);
                let mut ledger = Ledger::new(&host, "s", worker).unwrap();
                let mut taken = 0;
                while taken < 2_000 {
                    if ledger.try_acquire(&host, P, Tokens::default()).unwrap() {
                        let now = owners.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        taken += 1;
                        owners.fetch_sub(1, Ordering::SeqCst);
                        ledger.release(&host, 0).unwrap();
                    }
                }
            });
        }
    });
    assert!(most.into_inner() <= i64::from(P));
    let host = Unfiltered::new(&memory);
    let ledger = Ledger::new(&host, "s", 9).unwrap();
    assert_eq!(ledger.slots_in_use(&host), Ok(0));
}

#[test]
fn state_in_shared_data_fails_as_shared_data_does() {
    let memory = MemoryHost::new();
    memory.reject("s");
    let host = Unfiltered::new(&memory);
    let state = host.number("s").unwrap();
    host.set(state, 5).unwrap();
    memory.inject(Fault::StoreConflicts, 3);
    host.add_to(state, -6).unwrap();
    assert_eq!(host.get(state), Ok((-1_i64).cast_unsigned()));
    memory.inject(Fault::LoadFails, 1);
    assert!(host.get(state).is_err());
    memory.inject(Fault::StoreFails, 1);
    assert!(host.add_to(state, 1).is_err());
    assert_eq!(
        host.get(state),
        Ok((-1_i64).cast_unsigned()),
        "nothing was added"
    );
}

/// The proxies' schedules around P agree through the wall clock, so its offset must be passed on.
#[test]
fn the_wall_clock_is_the_hosts() {
    let memory = MemoryHost::new();
    let offset = Duration::from_secs(1_800_000_000);
    memory.set_wall_clock_offset(offset);
    assert_eq!(Unfiltered::new(&memory).wall_clock_offset(), offset);
}
