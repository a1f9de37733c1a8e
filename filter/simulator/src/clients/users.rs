//! Users of a service, who request page after page (SEDA §4.1).
//!
//! A user's next request depends on the last request (a Markov chain) and follows after a short
//! think time. A refused user waits for a while and then starts over with the first request, the
//! login. Users arrive and leave, one by one or all at once, and belong to classes.
//!
//! If connections are limited, as in servers with one process per connection, each request needs
//! its own connection. A user without a connection gets no answer. The user's TCP retries after 3 s
//! and doubles the timeout each time. TCP gives up after five retries, 189 s in all (Linux 2.4:
//! `tcp_syn_retries` 5, first timeout 3 s).

use super::series::Series;
use super::{Behaviour, Wake};
use crate::source::{Answer, Ending, Request};
use crate::workload::LogNormal;
use crate::workload::dice::Dice;

const SYN_TIMEOUT: u64 = 3_000_000_000;
const SYN_RETRIES: u32 = 5;

/// A page, which is a request type.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The name of the page.
    pub name: String,
    /// The work of one request for the page.
    pub work: LogNormal,
    /// The probability of each page to be the next page; the sum is 1.
    pub next: Vec<f64>,
}

/// The parameters of users.
#[derive(Debug, Clone, PartialEq)]
pub struct Habits {
    /// The pages; users begin with the first.
    pub pages: Vec<Page>,
    /// The time between an answer and the next request, ns.
    pub think: u64,
    /// The time between a refusal and the next attempt, ns.
    pub after_refusal: u64,
    /// The limit on connections; `None` for no limit.
    pub connections: Option<u32>,
}

/// A user's stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay {
    /// The start, ns since the start of the run.
    pub from: u64,
    /// The end, ns since the start of the run. After the end, the user still waits for a request in
    /// flight.
    pub until: u64,
    /// The user's class, 0 for the highest.
    pub class: u8,
}

#[derive(Debug, Clone, Copy)]
struct User {
    stay: Stay,
    page: usize,
    /// The time of the first attempt for the current page, ns.
    begun: u64,
    attempts: u32,
    timed_out: bool,
}

/// The users of a service, and the answers that they received.
#[derive(Debug)]
pub struct Users<'a> {
    habits: &'a Habits,
    users: Vec<User>,
    connected: u32,
    dice: Dice,
    /// Answers by class.
    classes: Vec<Series>,
    /// Answers by page.
    pages: Vec<Series>,
}

impl<'a> Users<'a> {
    /// Returns users with these stays. Their answers are recorded in intervals of `interval` ns.
    pub fn new(habits: &'a Habits, stays: &[Stay], interval: u64, seed: u64) -> Self {
        let user = |stay: &Stay| User {
            stay: *stay,
            page: 0,
            begun: stay.from,
            attempts: 0,
            timed_out: false,
        };
        let classes = stays.iter().map(|s| usize::from(s.class) + 1).max();
        Self {
            habits,
            users: stays.iter().map(user).collect(),
            connected: 0,
            dice: Dice::new(seed),
            classes: vec![Series::new(interval); classes.unwrap_or_default()],
            pages: vec![Series::new(interval); habits.pages.len()],
        }
    }

    /// Returns the answers to users of a class.
    pub fn class(&self, class: u8) -> &Series {
        &self.classes[usize::from(class)]
    }

    /// Returns the answers to requests for a page.
    pub fn page(&self, page: usize) -> &Series {
        &self.pages[page]
    }

    /// Returns the number of users whose TCP gave up at least once.
    pub fn timed_out(&self) -> usize {
        self.users.iter().filter(|user| user.timed_out).count()
    }

    /// Handles an attempt without a free connection. Returns the time of the next attempt.
    fn again(&mut self, client: usize, at: u64) -> u64 {
        let user = &mut self.users[client];
        user.attempts += 1;
        let wait = SYN_TIMEOUT << (user.attempts - 1);
        if user.attempts > SYN_RETRIES {
            user.timed_out = true;
            user.attempts = 0;
            user.page = 0;
            let next = at + wait + self.habits.after_refusal;
            user.begun = next;
            return next;
        }
        at + wait
    }
}

impl Behaviour for Users<'_> {
    fn wake(&mut self, client: u32, at: u64) -> Wake {
        let user = self.users[client as usize];
        if at >= user.stay.until {
            return Wake::Leave;
        }
        if self
            .habits
            .connections
            .is_some_and(|most| self.connected >= most)
        {
            return Wake::Later(self.again(client as usize, at));
        }
        self.connected += 1;
        let page = &self.habits.pages[user.page];
        Wake::Send(Request {
            client,
            class: user.stay.class,
            ..Request::new(at, user.page, self.dice.time(&page.work))
        })
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) -> u64 {
        self.connected -= 1;
        let user = &mut self.users[request.client as usize];
        self.classes[usize::from(request.class)].add(user.begun, at, answer);
        self.pages[request.kind].add(user.begun, at, answer);
        let pause = match answer.ending {
            Ending::Served => {
                user.page = self.dice.index(&self.habits.pages[request.kind].next);
                self.habits.think
            }
            Ending::Refused | Ending::Failed => {
                user.page = 0;
                self.habits.after_refusal
            }
        };
        user.attempts = 0;
        user.begun = at + pause;
        user.begun
    }
}
