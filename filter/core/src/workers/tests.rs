use std::collections::BTreeSet;
use std::thread;

use super::*;
use crate::memory::{Group, MemoryHost};

fn at(ms: u64) -> Instant {
    Instant::from_nanos(1_000_000_000_000 + ms * 1_000_000)
}

/// Ticks `members` every 50 ms from `from` to `to`. Returns the changes that they report, without
/// free numbers.
fn tick_all(
    members: &mut [&mut Membership],
    host: &MemoryHost,
    from: u64,
    to: u64,
) -> Vec<Changes> {
    let mut all = Vec::new();
    for ms in (from..to).step_by(50) {
        for member in members.iter_mut() {
            let changes = member.tick(at(ms), host).unwrap();
            for &dead in changes.dead.iter().chain(&changes.free) {
                member.buried(dead, host).unwrap();
            }
            let changes = Changes {
                free: Vec::new(),
                ..changes
            };
            if changes != Changes::default() {
                all.push(changes);
            }
        }
    }
    all
}

#[test]
fn numbers_are_unique_when_all_join_at_once() {
    let host = MemoryHost::new();
    let ids: Vec<WorkerId> = thread::scope(|scope| {
        let join = |nonce| {
            let host = &host;
            scope.spawn(move || Membership::join(at(0), nonce, host).unwrap().id())
        };
        let threads: Vec<_> = (1..=16).map(join).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 16, "{ids:?}");
    assert!(
        ids.iter().all(|&id| id < 16),
        "the lowest free numbers: {ids:?}"
    );
}

#[test]
fn a_number_that_was_given_back_is_given_out_again() {
    let host = MemoryHost::new();
    let first = Membership::join(at(0), 1, &host).unwrap();
    let second = Membership::join(at(0), 2, &host).unwrap();
    let id = first.id();
    first.leave(&host).unwrap();
    let third = Membership::join(at(0), 3, &host).unwrap();
    assert_eq!(third.id(), id);
    assert_ne!(second.id(), id);
}

#[test]
fn dead_workers_are_cleaned_up_once_and_their_numbers_are_free_afterwards() {
    let host = MemoryHost::new();
    let mut one = Membership::join(at(0), 1, &host).unwrap();
    let mut two = Membership::join(at(0), 2, &host).unwrap();
    let dead = Membership::join(at(0), 3, &host).unwrap();
    let told = tick_all(&mut [&mut one, &mut two], &host, 0, 10_000);
    let expected = Changes {
        dead: vec![dead.id()],
        ..Changes::default()
    };
    assert_eq!(told, [expected], "told once, to one of the two");
    assert!(!one.others().contains(&dead.id()) && !two.others().contains(&dead.id()));
    assert_eq!(
        Membership::join(at(10_000), 4, &host).unwrap().id(),
        dead.id()
    );
}

#[test]
fn a_pause_of_the_whole_process_declares_no_worker_dead() {
    let host = MemoryHost::new();
    let mut one = Membership::join(at(0), 1, &host).unwrap();
    let mut two = Membership::join(at(0), 2, &host).unwrap();
    assert_eq!(tick_all(&mut [&mut one, &mut two], &host, 0, 5_000), []);
    // The process was suspended for an hour. The first worker to run finds all heartbeats old.
    assert_eq!(
        tick_all(&mut [&mut one, &mut two], &host, 3_600_000, 3_610_000),
        []
    );
}

#[test]
fn a_vm_that_comes_back_after_its_burial_gets_a_new_number() {
    let host = MemoryHost::new();
    let mut one = Membership::join(at(0), 1, &host).unwrap();
    let mut late = Membership::join(at(0), 2, &host).unwrap();
    let old = late.id();
    tick_all(&mut [&mut one], &host, 0, 10_000);
    let taken = Membership::join(at(10_000), 3, &host).unwrap();
    assert_eq!(taken.id(), old);
    assert!(
        late.is_doubtful(at(10_000)),
        "it must not trust what it booked"
    );
    late.tick(at(10_000), &host).unwrap();
    assert_eq!(late.joins(), 2);
    assert_ne!(late.id(), old);
}

#[test]
fn the_next_worker_completes_an_interrupted_clean_up() {
    let host = MemoryHost::new();
    let mut one = Membership::join(at(0), 1, &host).unwrap();
    let mut two = Membership::join(at(0), 2, &host).unwrap();
    let dead = Membership::join(at(0), 3, &host).unwrap().id();
    // `one` finds the dead worker, and dies before it gives the share back.
    let mut told = Vec::new();
    for ms in (0..3_500).step_by(50) {
        two.tick(at(ms), &host).unwrap();
        told = one.tick(at(ms), &host).unwrap().dead;
        if !told.is_empty() {
            break;
        }
    }
    if told.is_empty() {
        // `two` found the dead worker first, so swap the two. The worker that found it is to die.
        std::mem::swap(&mut one, &mut two);
    }
    let dead_too = one.id();
    let told = tick_all(&mut [&mut two], &host, 3_550, 12_000);
    let buried: BTreeSet<WorkerId> = told.into_iter().flat_map(|c| c.dead).collect();
    assert_eq!(buried, BTreeSet::from([dead, dead_too]));
}

#[test]
fn too_many_workers_is_an_error_not_a_shared_number() {
    let host = MemoryHost::new();
    let members: Vec<_> = (1..=u64::from(MAX_WORKERS))
        .map(|n| Membership::join(at(0), n, &host).unwrap())
        .collect();
    assert_eq!(members.len(), MAX_WORKERS as usize);
    assert!(Membership::join(at(0), 9_999, &host).is_err());
}

#[test]
fn each_free_number_is_looked_through_in_turn() {
    let host = MemoryHost::new();
    let mut stays = Membership::join(at(0), 1, &host).unwrap();
    let leave: Vec<_> = (2..=4)
        .map(|n| Membership::join(at(0), n, &host).unwrap())
        .collect();
    let free: Vec<WorkerId> = leave.iter().map(Membership::id).collect();
    for member in leave {
        member.leave(&host).unwrap();
    }
    let mut swept = Vec::new();
    for ms in (100..25_000).step_by(100) {
        let changes = stays.tick(at(ms), &host).unwrap();
        assert!(changes.dead.is_empty());
        for &number in &changes.free {
            let other = Membership::join(at(ms), 9, &host).unwrap();
            assert_ne!(other.id(), number, "nobody gets it meanwhile");
            other.leave(&host).unwrap();
            stays.buried(number, &host).unwrap();
        }
        swept.extend(changes.free);
    }
    assert_eq!(swept[..3], free);
    assert_eq!(swept[3..6], free);
}

#[test]
fn gauges_that_include_a_parent_process_are_noticed() {
    let host = MemoryHost::new();
    let mut one = Membership::join(at(0), 1, &host).unwrap();
    assert!(!one.tick(at(100), &host).unwrap().hot_restart);
    // Envoy imports values like this when it merges the stats of its parent process.
    host.import("headgate.worker.0.heartbeat_ms", 999_000_000);
    assert!(one.tick(at(200), &host).unwrap().hot_restart);
    // The parent process has ended.
    host.import("headgate.worker.0.heartbeat_ms", 0);
    assert!(!one.tick(at(300), &host).unwrap().hot_restart);
}

#[test]
fn a_sum_of_two_processes_is_noticed_whatever_number_the_parent_had() {
    let host = MemoryHost::new();
    let mut one = Membership::join(at(0), 1, &host).unwrap();
    assert!(!one.tick(at(100), &host).unwrap().hot_restart);
    host.import("headgate.worker_processes", 1);
    assert!(one.tick(at(200), &host).unwrap().hot_restart);
}

#[test]
fn no_number_is_given_out_twice_in_a_process_with_two_lists() {
    let host = MemoryHost::new();
    let ids: Vec<WorkerId> = thread::scope(|scope| {
        let join = |nonce: u64| {
            let host = Group::new(&host, if nonce.is_multiple_of(2) { "a" } else { "b" });
            scope.spawn(move || Membership::join(at(0), nonce, &host).unwrap().id())
        };
        let threads: Vec<_> = (1..=16).map(join).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 16, "{ids:?}");
}

#[test]
fn a_list_cleans_up_only_its_own_dead_workers() {
    let memory = MemoryHost::new();
    let [a, b] = ["a", "b"].map(|group| Group::new(&memory, group));
    let mut stays = Membership::join(at(0), 1, &a).unwrap();
    let dies = Membership::join(at(0), 2, &a).unwrap();
    let mut other = Membership::join(at(0), 3, &b).unwrap();
    assert!(other.others().is_empty());
    let mut dead: Vec<WorkerId> = Vec::new();
    for ms in (50..20_000).step_by(50) {
        let changes = stays.tick(at(ms), &a).unwrap();
        assert!(!changes.free.contains(&other.id()), "{ms} ms");
        dead.extend(&changes.dead);
        for &gone in changes.dead.iter().chain(&changes.free) {
            stays.buried(gone, &a).unwrap();
        }
        let changes = other.tick(at(ms), &b).unwrap();
        assert!(!changes.free.contains(&stays.id()), "{ms} ms");
        assert!(other.joins() == 1 && changes.dead.is_empty(), "{ms} ms");
        for gone in changes.free {
            other.buried(gone, &b).unwrap();
        }
    }
    assert_eq!(dead, [dies.id()]);
    assert_eq!((stays.numbers(), other.numbers()), (3, 3));
}

#[test]
fn numbers_of_a_list_that_is_gone_are_swept_by_another() {
    let memory = MemoryHost::new();
    let [a, b] = ["a", "b"].map(|group| Group::new(&memory, group));
    let mut stays = Membership::join(at(0), 1, &a).unwrap();
    let gone = Membership::join(at(0), 2, &b).unwrap().id();
    let mut swept = None;
    for ms in (50..20_000).step_by(50) {
        for number in stays.tick(at(ms), &a).unwrap().free {
            assert_eq!(number, gone);
            swept = swept.or(Some(ms));
            stays.buried(number, &a).unwrap();
        }
    }
    let swept = swept.unwrap();
    assert!(swept > 6_000, "not before its own list had time: {swept}");
}
