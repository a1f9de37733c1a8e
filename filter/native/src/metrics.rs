//! Metrics, which are counted in this process's memory and written to Envoy at ticks.
//!
//! Each write to one of Envoy's metrics costs a look-up, and only Envoy's own threads can write
//! histograms. So hooks count in cells, under the lock that they hold anyway, and the main thread
//! writes the changes to Envoy.
//!
//! Names have their own lock. So requests continue while the metrics of a large configuration are
//! defined, in this module and in Envoy.
//!
//! Envoy accepts no definitions after it has created a configuration. Metrics whose names come from
//! requests are defined as families beforehand ([`crate::family`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use headgate_core::host::{MetricId, MetricKind, Metrics};
use headgate_strategies::host::HostError;

use crate::abi::Scope;
use crate::family::{self, Labels, Member};

/// The largest number of histogram values between two ticks. Further values are lost.
const MOST_VALUES: usize = 1 << 16;

/// A metric's name.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) kind: MetricKind,
    name: String,
    /// The family and the labels, for a member of a family.
    pub(crate) member: Option<Member>,
}

/// The names of all metrics, by number.
#[derive(Debug, Default)]
struct Table {
    ids: HashMap<String, u32>,
    /// The names by number.
    all: Vec<Option<Arc<Name>>>,
    /// The numbers without a name, for new metrics.
    free: Vec<usize>,
    /// The numbers that were reused and don't have a cell yet.
    reused: Vec<usize>,
}

static NAMES: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn names() -> MutexGuard<'static, Table> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unknown() -> HostError {
    let (call, status) = ("write a metric", 0);
    HostError::Call { call, status }
}

/// Defines metrics while a configuration is prepared without the engine's lock.
#[derive(Debug)]
pub(crate) struct Names;

impl Metrics for Names {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        let mut names = names();
        if let Some(&known) = names.ids.get(name) {
            return Ok(MetricId(known));
        }
        let new = Some(Arc::new(Name {
            kind,
            name: name.to_owned(),
            member: Member::of(name),
        }));
        let at = match names.free.pop() {
            Some(at) => {
                names.all[at] = new;
                names.reused.push(at);
                at
            }
            None => {
                names.all.push(new);
                names.all.len() - 1
            }
        };
        let id = u32::try_from(at).unwrap_or(u32::MAX);
        names.ids.insert(name.to_owned(), id);
        Ok(MetricId(id))
    }

    fn add(&self, _metric: MetricId, _delta: i64) -> Result<(), HostError> {
        Err(unknown())
    }

    fn record(&self, _metric: MetricId, _value: u64) -> Result<(), HostError> {
        Err(unknown())
    }
}

/// A change of a metric, to be written to Envoy.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) name: Arc<Name>,
    /// The number by which Envoy knows the metric.
    pub(crate) id: usize,
    pub(crate) value: u64,
}

/// The metrics of all policies. Counters and histograms cover the time since the last write to
/// Envoy. Gauges have their current values.
#[derive(Debug, Default)]
pub(crate) struct Counts(RefCell<Cells>);

#[derive(Debug, Default)]
struct Cells {
    /// The cells, by the number of the metric's name.
    all: Vec<Option<Cell>>,
    /// The numbers of the cells to write to Envoy.
    changed: Vec<u32>,
    /// The values of histograms, each with the number of its metric.
    values: Vec<(u32, u64)>,
}

#[derive(Debug)]
struct Cell {
    name: Arc<Name>,
    /// The value of a gauge. For a counter, the increase since the last write to Envoy.
    value: u64,
    changed: bool,
}

/// The numbers by which Envoy knows the metrics in one configuration.
#[derive(Debug, Default)]
pub(crate) struct Defined {
    /// Envoy's numbers, by the number of the metric's name, with the name at that time, because the
    /// number may be reused for another metric. `None` if Envoy refused the metric, and for members
    /// of families.
    single: Vec<Option<(Arc<Name>, usize)>>,
    /// Envoy's numbers of the families by name, for each kind of metric.
    families: [HashMap<String, usize>; 3],
}

impl Defined {
    fn id(&self, at: usize, name: &Arc<Name>) -> Option<usize> {
        match &name.member {
            Some(member) => self.families[name.kind as usize]
                .get(&member.family)
                .copied(),
            None => {
                let (defined, id) = self.single.get(at)?.as_ref()?;
                Arc::ptr_eq(defined, name).then_some(*id)
            }
        }
    }
}

/// Defines all known metrics in a new configuration, and the families of metrics that are defined
/// later. Each policy with workflows has metrics of `_other` from the start.
pub(crate) fn define_in(scope: Scope) -> Defined {
    let all = names().all.clone();
    let mut families: [HashMap<String, usize>; 3] = Default::default();
    let mut define = |kind: MetricKind, name: &str, labels: &Labels| {
        let of_kind = &mut families[kind as usize];
        if !of_kind.contains_key(name)
            && let Some(id) = scope.define(kind, name, labels)
        {
            of_kind.insert(name.to_owned(), id);
        }
    };
    let single = all.into_iter().map(|name| {
        let name = name?;
        if let Some(member) = &name.member {
            define(name.kind, &member.family, &member.labels);
            return None;
        }
        let id = scope.define(name.kind, &name.name, &[])?;
        Some((name, id))
    });
    let single = single.collect();
    let (name, labels) = family::SERVICES;
    define(MetricKind::Gauge, name, &labels);
    Defined { single, families }
}

impl Cells {
    /// Adds the cells of metrics that were defined since the last call.
    fn grow(&mut self) {
        let mut names = names();
        let Table { all, reused, .. } = &mut *names;
        let known = self.all.len();
        self.all.resize_with(all.len(), || None);
        let reused = reused.drain(..).filter(|at| *at < known);
        for at in reused.chain(known..all.len()) {
            self.all[at] = all[at].as_ref().map(|name| Cell {
                name: Arc::clone(name),
                value: 0,
                // A gauge is written even before its first change.
                changed: name.kind == MetricKind::Gauge,
            });
            if self.all[at].as_ref().is_some_and(|cell| cell.changed) {
                self.changed.push(u32::try_from(at).unwrap_or(u32::MAX));
            }
        }
    }
}

impl Counts {
    /// Removes the metrics of policies for which `is_gone` is true. Later metrics reuse their
    /// numbers. The caller must not call this function while a configuration is being prepared,
    /// because its metrics don't belong to any configuration yet.
    pub(crate) fn forget(&self, is_gone: impl Fn(&str) -> bool) {
        let mut cells = self.0.borrow_mut();
        cells.grow();
        let mut names = names();
        names.ids.retain(|name, _| !is_gone(name));
        let Table { all, free, .. } = &mut *names;
        for (at, (name, cell)) in all.iter_mut().zip(&mut cells.all).enumerate() {
            if name.as_ref().is_some_and(|name| is_gone(&name.name)) {
                (*name, *cell) = (None, None);
                free.push(at);
            }
        }
        // These changes and values belong to the removed metrics, not to later metrics that reuse
        // their numbers.
        let Cells {
            all,
            changed,
            values,
        } = &mut *cells;
        let stays = |metric: u32| all.get(metric as usize).is_some_and(Option::is_some);
        changed.retain(|metric| stays(*metric));
        values.retain(|(metric, _)| stays(*metric));
    }

    /// Makes the next write to Envoy include all gauges. Envoy removes metrics with the last
    /// configuration that defined them, and the metrics of a new configuration then start at 0.
    /// Members of families are removed with the last configuration that wrote them.
    pub(crate) fn rewrite_gauges(&self) {
        let mut cells = self.0.borrow_mut();
        cells.grow();
        let Cells { all, changed, .. } = &mut *cells;
        for (metric, cell) in (0..).zip(all) {
            if let Some(cell) = cell
                && cell.name.kind == MetricKind::Gauge
                && !std::mem::replace(&mut cell.changed, true)
            {
                changed.push(metric);
            }
        }
    }

    /// Returns changes that define the counters of families' members in a new configuration. Envoy
    /// removes members with the configuration that wrote them. Their counters then start at 0
    /// again, unless another configuration has written them by then. A histogram can't be written
    /// without a value, so a workflow's histogram starts over.
    pub(crate) fn members(&self, defined: &Defined) -> Vec<Change> {
        let mut cells = self.0.borrow_mut();
        cells.grow();
        let member = |(at, cell): (usize, &Option<Cell>)| {
            let Cell { name, .. } = cell.as_ref()?;
            let counts = name.member.is_some() && name.kind == MetricKind::Counter;
            Some(Change {
                name: Arc::clone(name),
                id: defined.id(at, name).filter(|_| counts)?,
                value: 0,
            })
        };
        cells.all.iter().enumerate().filter_map(member).collect()
    }

    /// Moves the changes to `out`. If the configuration lacks a metric, changes of counters and
    /// gauges stay for a configuration that has it. Values of histograms are dropped.
    pub(crate) fn take(&self, defined: &Defined, out: &mut Vec<Change>) {
        let mut cells = self.0.borrow_mut();
        cells.grow();
        let Cells {
            all,
            changed,
            values,
        } = &mut *cells;
        changed.retain(|&metric| {
            let at = metric as usize;
            let Some(Some(cell)) = all.get_mut(at) else {
                return false;
            };
            let Some(id) = defined.id(at, &cell.name) else {
                return true;
            };
            out.push(Change {
                name: Arc::clone(&cell.name),
                id,
                value: cell.value,
            });
            cell.changed = false;
            if cell.name.kind == MetricKind::Counter {
                cell.value = 0;
            }
            false
        });
        for (metric, value) in values.drain(..) {
            let at = metric as usize;
            if let Some(Some(cell)) = all.get(at)
                && let Some(id) = defined.id(at, &cell.name)
            {
                let name = Arc::clone(&cell.name);
                out.push(Change { name, id, value });
            }
        }
    }

    /// Changes a metric by `f`. `f` returns whether the cell must be written to Envoy.
    fn with(
        &self,
        metric: MetricId,
        f: impl FnOnce(&mut Cell, &mut Vec<(u32, u64)>) -> bool,
    ) -> Result<(), HostError> {
        let mut cells = self.0.borrow_mut();
        let at = metric.0 as usize;
        if cells.all.get(at).is_none_or(Option::is_none) {
            cells.grow();
        }
        let Cells {
            all,
            changed,
            values,
        } = &mut *cells;
        let cell = all.get_mut(at).and_then(Option::as_mut);
        let cell = cell.ok_or_else(unknown)?;
        if f(cell, values) && !cell.changed {
            cell.changed = true;
            changed.push(metric.0);
        }
        Ok(())
    }
}

impl Metrics for Counts {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        Names.define(kind, name)
    }

    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        self.with(metric, |cell, _| {
            cell.value = cell.value.wrapping_add_signed(delta);
            true
        })
    }

    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        self.with(metric, |cell, values| match cell.name.kind {
            MetricKind::Histogram => {
                if values.len() < MOST_VALUES {
                    values.push((metric.0, value));
                }
                false
            }
            MetricKind::Gauge => std::mem::replace(&mut cell.value, value) != value,
            MetricKind::Counter => {
                cell.value = cell.value.wrapping_add(value);
                true
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::fake::{self, Listener};

    const ONE_SLOT: &str = r#"{"stages":[{"policy":"ns/one","parallelism":1,
        "queue":{"max_length":10,"timeout_us":1000000},
        "strategy":{"type":"MaxQueueLength"},"types":[{"name":"default"}]}]}"#;

    fn define(kind: MetricKind, name: &str) -> MetricId {
        Names.define(kind, name).unwrap()
    }

    /// Returns a configuration in which Envoy has the metrics with names as of now.
    fn defined() -> Defined {
        let all = names().all.clone();
        let single = all.into_iter().enumerate();
        Defined {
            single: single.map(|(id, name)| Some((name?, id))).collect(),
            ..Defined::default()
        }
    }

    /// Returns the values that are written for metrics of `policy`.
    fn written(counts: &Counts, defined: &Defined, policy: &str) -> Vec<u64> {
        let mut changes = Vec::new();
        counts.take(defined, &mut changes);
        let of = changes.iter().filter(|of| of.name.name.contains(policy));
        of.map(|of| of.value).collect()
    }

    #[test]
    fn policies_that_come_and_go_need_no_further_numbers() {
        let _turn = fake::start();
        let (mut last, mut numbers) = (None, Vec::new());
        for n in 0..12 {
            let json = ONE_SLOT.replace("ns/one", &format!("ns/n{n}"));
            let listener = Listener::new(&json).unwrap();
            drop(last.take());
            listener.tick();
            last = Some(listener);
            numbers.push(names().all.len());
        }
        assert_eq!(numbers[4], numbers[11], "{numbers:?}");
    }

    /// An older configuration is the newest again after an update has failed.
    #[test]
    fn a_reused_number_is_not_written_to_the_metric_that_had_it() {
        let _turn = fake::start();
        let counts = Counts::default();
        let gone = define(MetricKind::Counter, "headgate.policy.ns/gone.x");
        let older = defined();
        counts.forget(|name| name.contains("ns/gone"));
        let next = define(MetricKind::Counter, "headgate.policy.ns/next.x");
        assert_eq!(next, gone);
        counts.add(next, 2).unwrap();
        assert_eq!(written(&counts, &older, "ns/next"), [0; 0]);
        assert_eq!(written(&counts, &defined(), "ns/next"), [2]);
        counts.forget(|name| name.contains("ns/next"));
    }

    #[test]
    fn a_reused_number_has_no_values_of_the_metric_that_had_it() {
        let _turn = fake::start();
        let counts = Counts::default();
        let gone = define(MetricKind::Histogram, "headgate.policy.ns/gone.x");
        counts.record(gone, 5).unwrap();
        counts.forget(|name| name.contains("ns/gone"));
        let next = define(MetricKind::Gauge, "headgate.policy.ns/next.x");
        assert_eq!(next, gone);
        counts.record(next, 7).unwrap();
        assert_eq!(written(&counts, &defined(), "ns/next"), [7]);
        counts.forget(|name| name.contains("ns/next"));
    }
}
