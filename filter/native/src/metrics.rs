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
    /// The names by number. Numbers are not reused, because Envoy's older configurations still
    /// refer to the old numbers.
    all: Vec<Option<Arc<Name>>>,
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
        let id = u32::try_from(names.all.len()).unwrap_or(u32::MAX);
        names.ids.insert(name.to_owned(), id);
        names.all.push(Some(Arc::new(Name {
            kind,
            name: name.to_owned(),
            member: Member::of(name),
        })));
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
    /// Envoy's numbers, by the number of the metric's name. `None` if Envoy refused the metric, and
    /// for members of families.
    single: Vec<Option<usize>>,
    /// Envoy's numbers of the families by name, for each kind of metric.
    families: [HashMap<String, usize>; 3],
}

impl Defined {
    fn id(&self, at: usize, name: &Name) -> Option<usize> {
        match &name.member {
            Some(member) => self.families[name.kind as usize].get(&member.family),
            None => self.single.get(at)?.as_ref(),
        }
        .copied()
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
    let single = all.iter().map(|name| match name.as_deref()? {
        Name {
            kind,
            member: Some(member),
            ..
        } => {
            define(*kind, &member.family, &member.labels);
            None
        }
        Name { kind, name, .. } => scope.define(*kind, name, &[]),
    });
    let single = single.collect();
    let (name, labels) = family::SERVICES;
    define(MetricKind::Gauge, name, &labels);
    Defined { single, families }
}

impl Cells {
    /// Adds the cells of metrics that were defined since the last call.
    fn grow(&mut self) {
        let names = names();
        for name in names.all.iter().skip(self.all.len()) {
            let cell = name.as_ref().map(|name| Cell {
                name: Arc::clone(name),
                value: 0,
                // A gauge is written even before its first change.
                changed: name.kind == MetricKind::Gauge,
            });
            if cell.as_ref().is_some_and(|cell| cell.changed) {
                let metric = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
                self.changed.push(metric);
            }
            self.all.push(cell);
        }
    }
}

impl Counts {
    /// Removes the metrics of policies for which `is_gone` is true. Some bytes of each remain. The
    /// caller must not call this function while a configuration is being prepared, because its
    /// metrics don't belong to any configuration yet.
    pub(crate) fn forget(&self, is_gone: impl Fn(&str) -> bool) {
        let mut cells = self.0.borrow_mut();
        cells.grow();
        let mut names = names();
        names.ids.retain(|name, _| !is_gone(name));
        for (name, cell) in names.all.iter_mut().zip(&mut cells.all) {
            if name.as_ref().is_some_and(|name| is_gone(&name.name)) {
                (*name, *cell) = (None, None);
            }
        }
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
        if at >= cells.all.len() {
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
