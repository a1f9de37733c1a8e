//! The experiments of SEDA (§4), with users of a service who go from page to page in a closed loop.
//!
//! Each of SEDA's stages has its own admission controller and queue. Here the service has the
//! queues. It is a [`Staged`] with a thread pool for each request type over one processor.
//! Headgate's stage has so many slots that it never holds a request. It only runs SEDA's admission
//! controllers, with one controller for each type (per-stage control) or one for all types
//! (single-stage control). Times in the data are in s, and results are in intervals of 5 s, as in
//! the paper's figures.

use std::ops::Range;
use std::time::Duration;

use headgate_core::config::StageConfig;
use headgate_simulator::backend::{Cores, Staged};
use headgate_simulator::clients::series::Series;
use headgate_simulator::clients::{ClosedLoop, users};
use headgate_simulator::{LogNormal, Run, SimulationError, Until};
use headgate_strategies::strategy::TypeId;
use serde::Deserialize;

use super::{Amount, Span};
use crate::measured::{ALL, Measured};

const SECOND: u64 = 1_000_000_000;
/// The interval of the paper's figures, s.
const INTERVAL_S: u64 = 5;

/// The parameters of a SEDA experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Users {
    stage: StageConfig,
    service: Service,
    /// The think times after an answer and after a refusal, ms.
    think: (u64, u64),
    /// The limit on connections, or `None` for no limit.
    connections: Option<u32>,
    stays: Vec<Stay>,
    /// The names of the users' classes, the highest first. Without classes, the list is empty.
    #[serde(default)]
    classes: Vec<String>,
    length: u64,
    /// Whether to measure results over time, too.
    #[serde(default)]
    curves: bool,
    /// The spans of time that the numbers cover, s.
    spans: Vec<Span<u64>>,
    #[serde(default)]
    events: Vec<(u64, String)>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Service {
    pages: Vec<Page>,
    /// The ratio of mean to median of the work of each page.
    mean_to_median: f64,
    /// The number of threads in each page's pool.
    threads: u32,
    /// σ, the contention, of [`Cores::new`].
    contention: f64,
    /// Whether an answer of lower quality needs less work.
    #[serde(default)]
    degrades: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    name: String,
    /// The mean work of a request, ms.
    work: f64,
    /// The probability of each page to be the next one, percent.
    next: Vec<f64>,
}

/// Users who arrive one after the other.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stay {
    users: u64,
    #[serde(default)]
    class: u8,
    #[serde(default)]
    from: u64,
    /// The time within which all of these users arrive, s.
    within: u64,
    until: Option<u64>,
}

impl Users {
    pub(super) fn run(&self, amount: &Amount, seed: u64) -> Result<Measured, SimulationError> {
        // Times are rounded to whole intervals.
        let scaled = |seconds: u64| {
            ((seconds as f64 * amount.part / INTERVAL_S as f64).round() as u64) * INTERVAL_S
        };
        let length = scaled(self.length).max(INTERVAL_S);
        let habits = self.habits()?;
        let mut stays = Vec::new();
        for stay in &self.stays {
            let (from, until) = (scaled(stay.from), stay.until.map(scaled));
            let within = stay.within.min(until.unwrap_or(length) - from);
            stays.extend((0..stay.users).map(|n| users::Stay {
                from: from * SECOND + n * within * SECOND / stay.users,
                until: until.map_or(u64::MAX, |until| until * SECOND),
                class: stay.class,
            }));
        }
        let starts: Vec<u64> = stays.iter().map(|stay| stay.from).collect();
        let users = users::Users::new(&habits, &stays, INTERVAL_S * SECOND, seed);
        let mut users = ClosedLoop::new(users, starts);
        let kinds: Vec<TypeId> = (0..).take(habits.pages.len()).map(TypeId).collect();
        let run = Run {
            stage: &self.stage,
            kinds: &kinds,
            warm_up: Duration::ZERO,
            until: Until::Time(Duration::from_secs(length)),
            // The strategy and the users must not share random numbers.
            seed: !seed,
        };
        let processor = Cores::new(1, self.service.contention);
        let mut service = Staged::new(processor, habits.pages.iter().map(|_| self.service.threads));
        if self.service.degrades {
            service = service.degrading();
        }
        run.with(&mut users, service)?;
        let users = users.behaviour();

        let mut measured = Measured::default();
        let all = [ALL.to_owned()];
        let classes = if self.classes.is_empty() {
            &all[..]
        } else {
            &self.classes
        };
        let classes = (0..)
            .zip(classes)
            .map(|(class, name)| (name.as_str(), users.class(class)));
        let pages = habits.pages.iter().enumerate();
        let pages = pages.map(|(at, page)| (page.name.as_str(), users.page(at)));
        let pages = pages.filter(|_| habits.pages.len() > 1);
        for (kind, answers) in pages.clone().chain(classes.clone()) {
            for span in &self.spans {
                let shown =
                    interval(scaled(span.from))..interval(scaled(span.until).max(INTERVAL_S));
                note(&mut measured, kind, &span.name, answers, &shown);
            }
        }
        measured.note(ALL, "timed_out_users", users.timed_out() as f64);
        if self.curves {
            let count = interval(length);
            for (page, answers) in pages {
                let rate = |answers: &Series, at| answers.admission_rate(at);
                measured.draw(page, "admission_rate", answers.curve(count, rate));
                let time = |answers: &Series, at| answers.response_time(at, 0.9);
                measured.draw(page, "page_rt_p90_s", answers.curve(count, time));
            }
            for (kind, answers) in classes {
                measured.draw(
                    kind,
                    "rt_p90_s",
                    answers.curve(count, |a, at| a.response_time(at, 0.9)),
                );
                measured.draw(
                    kind,
                    "rejected_pct",
                    answers.curve(count, |a, at| a.refused_pct(at)),
                );
                measured.draw(kind, "quality", answers.curve(count, |a, at| a.quality(at)));
            }
        }
        let event = |(at, what): &(u64, String)| (scaled(*at) as f64, what.clone());
        measured.events = self.events.iter().map(event).collect();
        Ok(measured)
    }

    fn habits(&self) -> Result<users::Habits, SimulationError> {
        let service = &self.service;
        let page = |page: &Page| {
            let work = LogNormal::new(page.work, page.work / service.mean_to_median);
            Ok(users::Page {
                name: page.name.clone(),
                work: work.map_err(|e| SimulationError::Workload(e.into()))?,
                next: page.next.iter().map(|percent| percent / 100.0).collect(),
            })
        };
        Ok(users::Habits {
            pages: service
                .pages
                .iter()
                .map(page)
                .collect::<Result<_, SimulationError>>()?,
            think: self.think.0 * SECOND / 1_000,
            after_refusal: self.think.1 * SECOND / 1_000,
            connections: self.connections,
        })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn interval(seconds: u64) -> usize {
    (seconds / INTERVAL_S) as usize
}

fn note(measured: &mut Measured, kind: &str, span: &str, answers: &Series, shown: &Range<usize>) {
    let seconds = (shown.len() as u64 * INTERVAL_S).max(1) as f64;
    let mut note =
        |metric: &str, value: Option<f64>| measured.note(kind, format!("{metric}{span}"), value);
    note("rt_p90_s", answers.response_time(shown.clone(), 0.9));
    note("rejected_pct", answers.refused_pct(shown.clone()));
    note(
        "served_rps",
        Some(answers.served(shown.clone()) as f64 / seconds),
    );
    note("quality", answers.quality(shown.clone()));
    let each = || shown.clone().map(|at| at..at + 1);
    let longest = each().filter_map(|at| answers.response_time(at, 0.9));
    note("largest_rt_p90_s", longest.reduce(f64::max));
    let times: Vec<f64> = each()
        .filter_map(|at| answers.response_time(at, 0.9))
        .collect();
    note("median_rt_p90_s", median(times));
    let rates: Vec<f64> = each().filter_map(|at| answers.admission_rate(at)).collect();
    note("least_rate", rates.iter().copied().reduce(f64::min));
    let steps = || rates.windows(2);
    note(
        "largest_rise",
        steps().map(|w| w[1] - w[0]).reduce(f64::max),
    );
    note(
        "largest_fall",
        steps().map(|w| w[0] / w[1]).reduce(f64::max),
    );
}
