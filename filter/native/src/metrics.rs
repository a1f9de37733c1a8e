//! Metrics, counted here and handed to Envoy at ticks.
//!
//! A metric of Envoy's costs a look-up a call, and histograms can be written by Envoy's own threads only. So requests
//! count in cells behind the lock that they hold anyway, and the main thread writes what changed.
//!
//! Envoy takes no definitions after a configuration was made. Metrics of what requests name are defined as families
//! beforehand ([`crate::family`]).

use std::cell::RefCell;
use std::collections::HashMap;

use headgate_core::host::{HostError, MetricId, MetricKind, Metrics};

use crate::abi::Scope;
use crate::family::{self, Labels, Member};

/// Values of histograms between two ticks, at most; further ones are lost.
const MOST_VALUES: usize = 1 << 16;

#[derive(Debug)]
struct Metric {
    kind: MetricKind,
    name: String,
    /// Labels, for one of a family.
    member: Option<Member>,
    /// Of a counter, what Envoy was not told yet.
    value: u64,
    changed: bool,
}

/// Something to tell Envoy.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) kind: MetricKind,
    /// Envoy's number.
    pub(crate) id: usize,
    /// Values of the labels, in a family.
    pub(crate) labels: Option<[String; 2]>,
    pub(crate) value: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Counts(RefCell<Table>);

#[derive(Debug, Default)]
struct Table {
    ids: HashMap<String, u32>,
    all: Vec<Metric>,
    /// Values of histograms.
    values: Vec<(u32, u64)>,
}

/// Envoy's numbers of the metrics in one configuration.
#[derive(Debug, Default)]
pub(crate) struct Defined {
    /// In the order of ours; `None` where Envoy refused, and for members of families.
    single: Vec<Option<usize>>,
    families: HashMap<(MetricKind, String), usize>,
}

impl Defined {
    fn id(&self, at: usize, metric: &Metric) -> Option<usize> {
        match &metric.member {
            Some(member) => {
                let family = (metric.kind, member.family.clone());
                self.families.get(&family).copied()
            }
            None => self.single.get(at).copied().flatten(),
        }
    }
}

impl Counts {
    /// Defines all metrics that there are in a configuration that is made, and the families of those to come: each
    /// policy with workflows has metrics of `_other` from the start.
    pub(crate) fn define_in(&self, scope: Scope) -> Defined {
        let table = self.0.borrow();
        let mut families = HashMap::new();
        let mut define = |kind, name: &str, labels: &Labels| {
            let key = (kind, name.to_owned());
            if !families.contains_key(&key)
                && let Some(id) = scope.define(kind, name, labels)
            {
                families.insert(key, id);
            }
        };
        let single = table.all.iter().map(|metric| match &metric.member {
            Some(member) => {
                define(metric.kind, &member.family, &member.labels);
                None
            }
            None => scope.define(metric.kind, &metric.name, &[]),
        });
        let single = single.collect();
        let (name, labels) = family::SERVICES;
        define(MetricKind::Gauge, name, &labels);
        Defined { single, families }
    }

    /// What makes Envoy know the members of families in a new configuration. Envoy forgets them with the configuration
    /// that
    /// wrote them, and counters start at 0 again, unless another one has written them by then. A distribution can't be
    /// written without a value: that of a workflow starts over.
    pub(crate) fn members(&self, defined: &Defined) -> Vec<Change> {
        let table = self.0.borrow();
        let member = |(at, metric): (usize, &Metric)| {
            let labels = metric.member.as_ref()?.values.clone();
            let value = match metric.kind {
                MetricKind::Counter => 0,
                MetricKind::Gauge => metric.value,
                MetricKind::Histogram => return None,
            };
            Some(Change {
                kind: metric.kind,
                id: defined.id(at, metric)?,
                labels: Some(labels),
                value,
            })
        };
        table.all.iter().enumerate().filter_map(member).collect()
    }

    /// Moves what changed to `out`. What the configuration doesn't have waits for one that has.
    pub(crate) fn take(&self, defined: &Defined, out: &mut Vec<Change>) {
        let mut table = self.0.borrow_mut();
        let Table { all, values, .. } = &mut *table;
        let change = |metric: &Metric, id, value| Change {
            kind: metric.kind,
            id,
            labels: metric.member.as_ref().map(|member| member.values.clone()),
            value,
        };
        for (at, metric) in all.iter_mut().enumerate() {
            if metric.changed
                && let Some(id) = defined.id(at, metric)
            {
                out.push(change(metric, id, metric.value));
                metric.changed = false;
                if metric.kind == MetricKind::Counter {
                    metric.value = 0;
                }
            }
        }
        for (metric, value) in values.drain(..) {
            let at = metric as usize;
            if let Some(metric) = all.get(at)
                && let Some(id) = defined.id(at, metric)
            {
                out.push(change(metric, id, value));
            }
        }
    }

    fn with(
        &self,
        metric: MetricId,
        f: impl FnOnce(&mut Metric, &mut Vec<(u32, u64)>),
    ) -> Result<(), HostError> {
        let mut table = self.0.borrow_mut();
        let Table { all, values, .. } = &mut *table;
        let found = all.get_mut(metric.0 as usize);
        let (call, status) = ("write a metric", 0);
        found
            .map(|found| f(found, values))
            .ok_or(HostError::Call { call, status })
    }
}

impl Metrics for Counts {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        let mut table = self.0.borrow_mut();
        if let Some(&known) = table.ids.get(name) {
            return Ok(MetricId(known));
        }
        let id = u32::try_from(table.all.len()).unwrap_or(u32::MAX);
        table.ids.insert(name.to_owned(), id);
        table.all.push(Metric {
            kind,
            name: name.to_owned(),
            member: Member::of(name),
            value: 0,
            // A gauge shows from the start.
            changed: kind == MetricKind::Gauge,
        });
        Ok(MetricId(id))
    }

    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        self.with(metric, |metric, _| {
            metric.value = metric.value.wrapping_add_signed(delta);
            metric.changed = true;
        })
    }

    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        self.with(metric, |found, values| match found.kind {
            MetricKind::Histogram => {
                if values.len() < MOST_VALUES {
                    values.push((metric.0, value));
                }
            }
            MetricKind::Gauge => {
                found.changed |= found.value != value;
                found.value = value;
            }
            MetricKind::Counter => {
                found.value = found.value.wrapping_add(value);
                found.changed = true;
            }
        })
    }
}
