use crate::memory::{Fault, MemoryHost};
use proptest::prelude::*;

use super::*;

fn at(ms: u64) -> Instant {
    Instant::default() + Duration::from_secs(100) + Duration::from_millis(ms)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn received(elapsed: u64, work: u64) -> Progress {
    Progress {
        elapsed: ms(elapsed),
        work: ms(work),
        ..Progress::default()
    }
}

const BRANCH: Branch = Branch {
    worker: 3,
    slot: 17,
    generation: 5,
};

fn branches() -> Branches {
    Branches::new("b".into())
}

#[test]
fn calls_one_after_the_other_add_up() {
    let (host, mut branches) = (MemoryHost::new(), branches());
    for (begin, end) in [(10, 30), (40, 80)] {
        branches.began(&host, at(begin), BRANCH, at(0)).unwrap();
        // The child reports half of the time that the caller waited.
        let half = received((end - begin) / 2, 7);
        let done = branches.ended(&host, at(end), BRANCH, ms(end - begin), Some(&half));
        done.unwrap();
    }
    let children = branches.load(&host, BRANCH).unwrap().unwrap();
    // The request was in the slot for 100 ms, and waited for children for 60 of them.
    let found = children.progress(at(0), at(100));
    assert_eq!((found.elapsed, found.work), (ms(40 + 30), ms(40 + 14)));
}

#[test]
fn calls_side_by_side_count_by_their_parallelism() {
    // The calls are on two workers, of which one doesn't have the request.
    let (host, mut workers) = (MemoryHost::new(), [branches(), branches()]);
    for n in 0..4 {
        workers[n % 2].began(&host, at(10), BRANCH, at(0)).unwrap();
    }
    let open = workers[0].load(&host, BRANCH).unwrap().unwrap();
    assert_eq!(
        open.progress(at(0), at(40)).elapsed,
        ms(10),
        "as it is under way"
    );
    for n in 0..4 {
        let took = ms(50);
        let progress = received(40, 40);
        let done = workers[n / 2].ended(&host, at(60), BRANCH, took, Some(&progress));
        done.unwrap();
    }
    let children = workers[1].load(&host, BRANCH).unwrap().unwrap();
    let found = children.progress(at(0), at(70));
    assert_eq!((found.elapsed, found.work), (ms(20 + 40), ms(20 + 160)));
}

#[test]
fn a_call_without_reported_times_counts_with_its_whole_time() {
    let (host, mut branches) = (MemoryHost::new(), branches());
    branches.began(&host, at(10), BRANCH, at(0)).unwrap();
    branches.ended(&host, at(30), BRANCH, ms(20), None).unwrap();
    let children = branches.load(&host, BRANCH).unwrap().unwrap();
    let found = children.progress(at(0), at(50));
    assert_eq!((found.elapsed, found.work), (ms(50), ms(50)));
}

#[test]
fn a_branch_belongs_to_one_request() {
    let (host, mut branches) = (MemoryHost::new(), branches());
    branches.began(&host, at(0), BRANCH, at(0)).unwrap();
    let next = Branch {
        generation: BRANCH.generation + 1,
        ..BRANCH
    };
    assert_eq!(branches.load(&host, next).unwrap(), None);
    assert!(branches.began(&host, at(5), next, at(5)).unwrap().is_some());
    // A late answer to a call of the previous request, and a late call of the previous request,
    // change nothing.
    branches.ended(&host, at(9), BRANCH, ms(9), None).unwrap();
    assert_eq!(branches.began(&host, at(9), BRANCH, at(0)).unwrap(), None);
    let children = branches.load(&host, next).unwrap().unwrap();
    assert_eq!((children.outstanding, children.ended), (1, 0));
    for fault in [Fault::LoadFails, Fault::StoreFails] {
        host.inject(fault, 1);
        assert!(branches.began(&host, at(9), next, at(5)).is_err());
    }
}

proptest! {
    #[test]
    fn a_token_is_short_and_has_the_given_values(
        branch in prop::option::of((0_u32..256, 0..MAX_BRANCHES, any::<u32>())),
        ids in (any::<u16>(), 0_u8..16, any::<u8>()),
        started in 0_u64..1 << 53,
        deadline in prop::option::of(1_u64..1 << 53),
        spans in prop::array::uniform4(prop::option::of(0_u64..UNKNOWN - 1)),
        age in 0..=OLD,
    ) {
        let us = |us: u64| Instant::from_nanos(us * 1_000);
        let span = |at: usize| spans[at].map(Duration::from_micros);
        let process = ProcessId(0x1234_5678_9abc_def0);
        let parent = Parent {
            process,
            branch: branch.map(|(worker, slot, generation)| Branch { worker, slot, generation }),
            workflow: WorkflowId(ids.0),
            class: ClassId(ids.1),
            classes: ids.2,
            started: us(started),
            deadline: deadline.map(us),
            progress: Progress {
                elapsed: span(0).unwrap_or_default(),
                total: span(1),
                work: span(2).unwrap_or_default(),
                total_work: span(3),
                age: Duration::from_millis(age),
            },
        };
        let token = parent.token();
        prop_assert!(token.as_str().len() <= Token::LENGTH);
        prop_assert_eq!(Parent::of_token(process, token.as_bytes()), Some(parent));
        prop_assert_eq!(Parent::of_token(ProcessId(1), token.as_bytes()), None);
    }

    #[test]
    fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = Parent::of_token(ProcessId(1), &bytes);
        let mut ours = shared::header(10).to_vec();
        ours.extend(&bytes);
        if let Some(children) = shared::decode::<Children>(&ours) {
            let _ = children.progress(at(0), at(1));
        }
    }
}
