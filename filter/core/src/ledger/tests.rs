use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use headgate_strategies::host::Version;

use super::*;
use crate::memory::MemoryHost;

const P: u32 = 3;

/// With real threads that race for slots, there are never more than P owners, and all slots are
/// released.
#[test]
fn contending_workers_never_own_more_than_p_slots() {
    let host = MemoryHost::new();
    let (owners, most, taken) = (AtomicI64::new(0), AtomicI64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for worker in 0..4 {
            let (host, owners, most, taken) = (&host, &owners, &most, &taken);
            scope.spawn(move || {
                let mut ledger = Ledger::new(host, "s", worker).unwrap();
                while taken.load(Ordering::SeqCst) < 20_000 {
                    if ledger.try_acquire(host, P, Tokens::default()).unwrap() {
                        let now = owners.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        taken.fetch_add(1, Ordering::SeqCst);
                        owners.fetch_sub(1, Ordering::SeqCst);
                        ledger.release(host, 0).unwrap();
                    }
                }
            });
        }
    });
    assert!(
        most.load(Ordering::SeqCst) <= i64::from(P),
        "{} owners",
        most.into_inner()
    );
    assert_eq!(host.value("s.slots_in_use"), Some(0));
}

/// With real threads and a budget of tokens that is less than P requests may need, owners never
/// take more than the budget. Requests take different numbers of tokens, up to the whole budget.
#[test]
fn contending_workers_never_own_more_than_the_budget() {
    const BUDGET: u32 = 10;
    let host = MemoryHost::new();
    let (owned, most, taken) = (AtomicI64::new(0), AtomicI64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for worker in 0..4 {
            let (host, owned, most, taken) = (&host, &owned, &most, &taken);
            scope.spawn(move || {
                let mut ledger = Ledger::new(host, "s", worker).unwrap();
                ledger.count_tokens(host).unwrap();
                let mut tokens = worker;
                while taken.load(Ordering::SeqCst) < 20_000 {
                    tokens = tokens % BUDGET + 1;
                    let of = Tokens {
                        taken: tokens,
                        budget: BUDGET,
                    };
                    if ledger.try_acquire(host, P, of).unwrap() {
                        let more = i64::from(tokens);
                        let now = owned.fetch_add(more, Ordering::SeqCst) + more;
                        most.fetch_max(now, Ordering::SeqCst);
                        taken.fetch_add(1, Ordering::SeqCst);
                        owned.fetch_sub(more, Ordering::SeqCst);
                        ledger.release(host, tokens).unwrap();
                    }
                }
            });
        }
    });
    let most = most.into_inner();
    assert!(most <= i64::from(BUDGET), "{most} tokens");
    assert_eq!(host.value("s.tokens_in_use"), Some(0));
    assert_eq!(host.value("s.slots_in_use"), Some(0));
}

#[test]
fn tokens_are_given_back_with_the_share_of_a_dead_worker() {
    let host = MemoryHost::new();
    let (mut alive, mut dead) = (
        Ledger::new(&host, "s", 0).unwrap(),
        Ledger::new(&host, "s", 1).unwrap(),
    );
    for (ledger, tokens) in [(&mut alive, 5), (&mut dead, 7)] {
        ledger.count_tokens(&host).unwrap();
        ledger.acquire_over_limit(&host, tokens).unwrap();
    }
    assert_eq!(alive.tokens_in_use(&host), Ok(12));
    assert_eq!(alive.give_back(&host, 1).unwrap().tokens, 7);
    assert_eq!(alive.tokens_in_use(&host), Ok(5));
    assert_eq!(alive.drift(&host, 2), Ok(Share::default()));
    // The worker was not dead, and books its share again.
    dead.rejoin(&host, 2).unwrap();
    assert_eq!(alive.tokens_in_use(&host), Ok(12));
    assert_eq!(alive.drift(&host, 3), Ok(Share::default()));
    // The worker dies. Another worker with the same number gives the tokens back when it begins to
    // count tokens.
    let mut next = Ledger::new(&host, "s", 2).unwrap();
    assert_eq!(alive.slots_in_use(&host), Ok(1));
    next.count_tokens(&host).unwrap();
    assert_eq!(alive.tokens_in_use(&host), Ok(5));
    alive.release(&host, 5).unwrap();
    assert_eq!(next.tokens_in_use(&host), Ok(0));
}

#[test]
fn a_dead_workers_share_is_given_back_exactly() {
    let host = MemoryHost::new();
    let mut alive = Ledger::new(&host, "s", 0).unwrap();
    let mut dead = Ledger::new(&host, "s", 1).unwrap();
    assert!(alive.try_acquire(&host, P, Tokens::default()).unwrap());
    assert!(dead.try_acquire(&host, P, Tokens::default()).unwrap());
    dead.publish_head(&host, Some(7)).unwrap();
    dead.enqueue(&host, 250).unwrap();
    alive.enqueue(&host, 40).unwrap();
    assert_eq!(alive.head_of(&host, 1).unwrap(), Some(7));

    let share = alive.give_back(&host, 1).unwrap();
    assert_eq!(
        share,
        Share {
            slots: 1,
            queued: 1,
            work: 250,
            ..Share::default()
        }
    );
    assert_eq!(alive.slots_in_use(&host).unwrap(), 1);
    assert_eq!(
        alive.queue(&host).unwrap(),
        QueueState {
            length: 1,
            work: 40
        }
    );
    assert_eq!(
        alive.head_of(&host, 1).unwrap(),
        None,
        "nobody waits for a dead worker's request"
    );
    assert_eq!(alive.drift(&host, 2).unwrap(), Share::default());

    // The worker was not dead. It resumes with another number and books its requests again.
    dead.rejoin(&host, 2).unwrap();
    assert_eq!(alive.slots_in_use(&host).unwrap(), 2);
    assert_eq!(
        alive.queue(&host).unwrap(),
        QueueState {
            length: 2,
            work: 290
        }
    );
    assert_eq!(alive.drift(&host, 3).unwrap(), Share::default());
}

#[test]
fn a_total_that_lost_its_share_is_found_and_corrected() {
    let host = MemoryHost::new();
    let mut ledger = Ledger::new(&host, "s", 0).unwrap();
    assert!(ledger.try_acquire(&host, P, Tokens::default()).unwrap());
    // This simulates a VM that died after it booked the total and before it booked its share.
    let total = host.number("s.slots_in_use").unwrap();
    host.add_to(total, 1).unwrap();
    let drift = ledger.drift(&host, 1).unwrap();
    assert_eq!(
        drift,
        Share {
            slots: 1,
            ..Share::default()
        }
    );
    ledger.correct(&host, drift).unwrap();
    assert_eq!(ledger.slots_in_use(&host).unwrap(), 1);
    assert_eq!(ledger.drift(&host, 1).unwrap(), Share::default());
}

#[test]
fn length_and_work_of_the_longest_queue_fit_into_one_gauge() {
    let host = MemoryHost::new();
    let mut ledger = Ledger::new(&host, "s", 0).unwrap();
    let length = crate::config::MAX_QUEUE_LENGTH;
    let mut works = Vec::new();
    for _ in 0..length {
        let work = ledger.queue(&host).unwrap().room().cast_signed();
        ledger.enqueue(&host, work).unwrap();
        works.push(work);
    }
    let queue = ledger.queue(&host).unwrap();
    assert_eq!(
        queue,
        QueueState { length, work: FULL },
        "work ends, length goes on"
    );
    for work in works {
        ledger.dequeue(&host, work).unwrap();
    }
    assert_eq!(ledger.queue(&host).unwrap(), QueueState::default());
}

/// The length of the queue stays right even if every worker reads the queue before the others add
/// to it.
#[test]
fn requests_that_arrive_at_once_on_all_workers_leave_the_length_alone() {
    let host = MemoryHost::new();
    let mut ledger = Ledger::new(&host, "s", 0).unwrap();
    let nearly_full = (FULL - 1).cast_signed();
    ledger.enqueue(&host, nearly_full - 1).unwrap();
    let read = ledger.queue(&host).unwrap();
    for _ in 0..crate::workers::MAX_WORKERS {
        ledger.enqueue(&host, read.room().cast_signed()).unwrap();
    }
    let length = 1 + crate::workers::MAX_WORKERS;
    assert_eq!(ledger.queue(&host).unwrap().length, length);
}

#[test]
fn a_total_below_zero_is_an_empty_queue() {
    let host = MemoryHost::new();
    let mut ledger = Ledger::new(&host, "s", 0).unwrap();
    ledger.enqueue(&host, 500).unwrap();
    let too_much = Share {
        queued: 1,
        work: 700,
        ..Share::default()
    };
    ledger.correct(&host, too_much).unwrap();
    assert_eq!(ledger.queue(&host).unwrap(), QueueState::default());
    let drift = ledger.drift(&host, 1).unwrap();
    assert_eq!(drift.queue(), -too_much.queue());
    ledger.correct(&host, drift).unwrap();
    assert_eq!(
        ledger.queue(&host).unwrap(),
        QueueState {
            length: 1,
            work: 500
        }
    );
}

/// A host with a worker that contends for slots. This worker adds to the total just before another
/// worker reads it, and subtracts just after the other worker subtracts.
struct Contended<'a> {
    host: &'a MemoryHost,
    total: Number,
    contentions: Cell<u32>,
    added: Cell<bool>,
}

impl Shared for Contended<'_> {
    fn wall_clock_offset(&self) -> Duration {
        self.host.wall_clock_offset()
    }
    fn number(&self, name: &str) -> Result<Number, HostError> {
        self.host.number(name)
    }
    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError> {
        self.host.add_to(number, delta)?;
        if number == self.total && delta < 0 && self.added.take() {
            self.host.add_to(self.total, -1)?;
        }
        Ok(())
    }
    fn set(&self, number: Number, value: u64) -> Result<(), HostError> {
        self.host.set(number, value)
    }
    fn get(&self, number: Number) -> Result<u64, HostError> {
        let left = self.contentions.get();
        if number == self.total && left > 0 && self.host.get(number)? > 0 {
            self.contentions.set(left - 1);
            self.added.set(true);
            self.host.add_to(self.total, 1)?;
        }
        self.host.get(number)
    }
    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        self.host.load(key)
    }
    fn store(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), HostError> {
        self.host.store(key, value, expected)
    }
    fn wake(&self, worker: u32) -> Result<(), HostError> {
        self.host.wake(worker)
    }
}

#[test]
fn a_slot_that_two_stepped_back_from_is_tried_again() {
    let memory = MemoryHost::new();
    let total = memory.number("s.slots_in_use").unwrap();
    let host = Contended {
        host: &memory,
        total,
        contentions: Cell::new(0),
        added: Cell::new(false),
    };
    let mut ledger = Ledger::new(&host, "s", 0).unwrap();
    host.contentions.set(3);
    assert_eq!(ledger.try_acquire(&host, 1, Tokens::default()), Ok(true));
    assert_eq!(host.contentions.get(), 0, "else this test shows nothing");
    assert_eq!(ledger.slots_in_use(&host), Ok(1));
    assert_eq!(
        ledger.try_acquire(&host, 1, Tokens::default()),
        Ok(false),
        "none is free"
    );
    assert_eq!(ledger.slots_in_use(&host), Ok(1));
}
