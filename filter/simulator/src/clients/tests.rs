use std::time::Duration;

use headgate_core::config::{FilterConfig, StageConfig};
use headgate_mesh::smoothing::Smoothing;
use headgate_strategies::strategy::TypeId;

use super::threads::{self, Phase, Threads};
use super::users::{Habits, Page, Stay, Users};
use super::*;
use crate::backend::{Cores, Staged};
use crate::simulation::{Run, Until};
use crate::source::Ending;
use crate::workload::LogNormal;

const SECOND: u64 = 1_000_000_000;

fn stage(slots: u32, max_length: u32) -> StageConfig {
    let json = format!(
        r#"{{"stages":[{{"policy":"default/p","parallelism":{slots},
        "queue":{{"max_length":{max_length},"timeout_us":600000000}},
        "strategy":{{"type":"MaxQueueLength"}},"types":[{{"name":"default"}}]}}]}}"#
    );
    FilterConfig::from_json(json.as_bytes())
        .unwrap()
        .stages
        .remove(0)
}

fn habits(connections: Option<u32>) -> Habits {
    let page = |name: &str, next: [f64; 2]| Page {
        name: name.to_owned(),
        work: LogNormal::new(20.0, 10.0).unwrap(),
        next: next.to_vec(),
    };
    Habits {
        pages: vec![page("login", [0.0, 1.0]), page("mail", [0.1, 0.9])],
        think: SECOND / 50,
        after_refusal: 5 * SECOND,
        connections,
    }
}

/// A source that counts the requests in flight.
struct Counted<S> {
    inner: S,
    under_way: u32,
    most: u32,
    sent: u64,
    ended: u64,
}

impl<S> Counted<S> {
    fn new(inner: S) -> Self {
        Self {
            inner,
            under_way: 0,
            most: 0,
            sent: 0,
            ended: 0,
        }
    }
}

impl<S: Source> Source for Counted<S> {
    fn peek(&self) -> Option<u64> {
        self.inner.peek()
    }

    fn take(&mut self) -> Option<Request> {
        let request = self.inner.take()?;
        self.under_way += 1;
        self.sent += 1;
        self.most = self.most.max(self.under_way);
        Some(request)
    }

    fn forwarded(&mut self, request: &Request, at: u64) {
        self.inner.forwarded(request, at);
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) {
        self.under_way -= 1;
        self.ended += 1;
        self.inner.answered(request, at, answer);
    }
}

#[test]
fn users_are_conserved_whatever_becomes_of_their_requests() {
    let stay = |n: u64| Stay {
        from: n * SECOND / 10,
        until: if n.is_multiple_of(2) {
            20 * SECOND
        } else {
            u64::MAX
        },
        class: 0,
    };
    let stays: Vec<Stay> = (0..60).map(stay).collect();
    for (connections, queue) in [(None, 1_000), (None, 5), (Some(10), 1_000)] {
        let habits = habits(connections);
        let starts: Vec<u64> = stays.iter().map(|s| s.from).collect();
        let users = Users::new(&habits, &stays, 5 * SECOND, 7);
        let mut source = Counted::new(ClosedLoop::new(users, starts));
        let stage = stage(8, queue);
        let run = Run {
            stage: &stage,
            kinds: &[TypeId(0), TypeId(0)],
            warm_up: Duration::ZERO,
            until: Until::Time(Duration::from_secs(60)),
            seed: 1,
        };
        let backend = Staged::new(Cores::new(1, 0.01), [4, 4]);
        let outcome = run.with(&mut source, backend).unwrap();

        // All requests were answered in the end, and the users whose stay is over have left.
        assert_eq!(source.inner.thinking.len(), stays.len() - 30);
        assert_eq!((source.sent, source.under_way), (source.ended, 0));
        let offered: u64 = outcome.types.iter().map(|kind| kind.offered).sum();
        assert_eq!(offered, source.sent);
        assert!(source.most as usize <= stays.len());
        let users = source.inner.behaviour();
        let everything = 0..usize::MAX;
        let refused = users.class(0).refused_pct(everything.clone()).unwrap();
        assert_eq!(refused > 0.0, queue == 5, "{refused}");
        if let Some(connections) = connections {
            assert!(source.most <= connections, "{}", source.most);
        }
        let by_page: u64 = (0..2)
            .map(|page| users.page(page).served(everything.clone()))
            .sum();
        assert_eq!(by_page, users.class(0).served(everything));
    }
}

#[test]
fn a_client_without_a_connection_retries_and_then_gives_up() {
    let habits = Habits {
        connections: Some(0),
        ..habits(None)
    };
    let stays = [Stay {
        from: 0,
        until: u64::MAX,
        class: 0,
    }];
    let mut users = ClosedLoop::new(Users::new(&habits, &stays, SECOND, 1), [0]);
    let mut tries = Vec::new();
    while tries.len() < 8 {
        tries.push(users.peek().unwrap() / SECOND);
        assert_eq!(users.take(), None);
    }
    // The timeouts are 3 s, doubled each time. The attempts end after 189 s, and the user starts
    // again 5 s later.
    assert_eq!(tries, [0, 3, 9, 21, 45, 93, 194, 197]);
    assert_eq!(users.behaviour().timed_out(), 1);
}

#[test]
fn a_refused_user_logs_in_again_after_five_seconds() {
    let habits = habits(None);
    let stays = [Stay {
        from: 0,
        until: u64::MAX,
        class: 3,
    }];
    let mut users = ClosedLoop::new(Users::new(&habits, &stays, SECOND, 1), [0]);
    let answer = |ending| Answer {
        ending,
        rejection_rate: 0.0,
        admission_rate: None,
        quality: None,
    };
    let login = users.take().unwrap();
    assert_eq!((login.kind, login.class), (0, 3));
    users.answered(&login, SECOND, answer(Ending::Served));
    let mail = users.take().unwrap();
    assert_eq!((mail.kind, mail.at), (1, SECOND + SECOND / 50));
    users.answered(&mail, 2 * SECOND, answer(Ending::Refused));
    let again = users.take().unwrap();
    assert_eq!((again.kind, again.at), (0, 7 * SECOND));
}

fn thread_habits(smoothing: Option<Smoothing>) -> threads::Habits {
    threads::Habits {
        threads: 1,
        phases: vec![
            Phase {
                from: 0,
                think: (SECOND, SECOND),
            },
            Phase {
                from: 100 * SECOND,
                think: (SECOND / 10, SECOND / 10),
            },
        ],
        smoothing,
        companies: 30,
        portfolio: 100,
        access: 1_000.0,
    }
}

#[test]
fn smoothing_delays_as_often_as_the_hint_says_and_counts_as_delay() {
    let always = Duration::from_millis(200);
    let habits = thread_habits(Some(Smoothing {
        least: always,
        most: always,
    }));
    let mut threads = Threads::new(&habits, SECOND, 2 * SECOND, 1);
    let mut delayed = 0;
    let mut at = 0;
    for _ in 0..2_000 {
        let Wake::Send(request) = threads.wake(0, at) else {
            panic!("threads always send");
        };
        assert_eq!(request.processing, u64::from(request.cost) * 1_000);
        threads.forwarded(&request, at);
        let answer = Answer {
            ending: Ending::Served,
            rejection_rate: 0.25,
            admission_rate: None,
            quality: None,
        };
        let next = threads.answered(&request, at, answer);
        let think = if at < 100 * SECOND {
            SECOND
        } else {
            SECOND / 10
        };
        assert!(next == at + think || next == at + think + SECOND / 5);
        delayed += u32::from(next > at + think);
        at = next;
    }
    assert!((delayed as f64 / 2_000.0 - 0.25).abs() < 0.03, "{delayed}");
    // Answers are immediate, so all of the delay is the clients' own.
    let delay: f64 = threads.samples().iter().map(|s| s.delay).sum();
    assert!(
        (delay - f64::from(delayed) / 5.0).abs() < 0.5,
        "{delay} {delayed}"
    );
}

#[test]
fn the_backlog_is_what_waits() {
    let habits = thread_habits(None);
    let mut threads = Threads::new(&habits, SECOND, 2 * SECOND, 1);
    let mut send = |at: u64| match threads.wake(0, at) {
        Wake::Send(request) => request,
        other => panic!("{other:?}"),
    };
    let (first, second, third) = (send(0), send(1), send(2));
    threads.forwarded(&first, SECOND);
    let refused = Answer {
        ending: Ending::Refused,
        rejection_rate: 0.0,
        admission_rate: None,
        quality: None,
    };
    threads.answered(&second, 2 * SECOND, refused);
    threads.forwarded(&third, 3 * SECOND);
    let backlogs: Vec<u64> = threads.samples().iter().map(|s| s.backlog).collect();
    let (first, second, third) = (
        u64::from(first.cost),
        u64::from(second.cost),
        u64::from(third.cost),
    );
    assert_eq!(
        backlogs[..3],
        [first + second + third, second + third, third]
    );
}
