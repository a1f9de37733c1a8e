//! What the leader tells all workers of a process, once an interval: a blob, and a gauge that counts how often
//! it changed, so that who has nothing new to read makes no copy of it.

use std::time::Duration;

use super::limiter::Level;
use super::tally::{float, small, span};
use super::{ProcessId, WorkflowId};
use crate::config::MAX_WORKFLOWS;
use crate::histogram::{put_varint, take_varint};
use crate::time::{Instant, nanos};

const HEADER: [u8; 3] = [b'H', b'R', 1];
/// What a row has.
const LIMITED: u64 = 1;
const COMPLETION: u64 = 2;
const TOTALS: u64 = 4;
const CALLS: u64 = 8;
const NEWCOMERS: u64 = 16;

/// What is known of a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Row {
    pub(super) workflow: WorkflowId,
    /// σ and numbers issued at [`Published::at`]; `None`: no limit.
    pub(super) limit: Option<(f64, f64)>,
    /// Mean time from admission to end.
    pub(super) completion: Option<Duration>,
    /// Mean service time and work of requests that enter the mesh here, with all calls below.
    pub(super) totals: Option<(Duration, Duration)>,
    /// Whether its requests call other processes.
    pub(super) calls: bool,
    /// What an upstream process may send that was not seen yet, requests/s.
    pub(super) newcomers: Option<f64>,
}

/// See the module.
#[derive(Debug, Default, PartialEq, Clone)]
pub(super) struct Published {
    pub(super) at: Instant,
    /// Ascending by workflow.
    pub(super) rows: Vec<Row>,
    /// What upstream processes may send, requests/s; ascending.
    pub(super) announced: Vec<(WorkflowId, ProcessId, f64)>,
}

impl Published {
    pub(super) fn row(&self, workflow: WorkflowId) -> Option<&Row> {
        let at = self
            .rows
            .binary_search_by_key(&workflow, |row| row.workflow);
        self.rows.get(at.ok()?)
    }

    pub(super) fn level(&self, workflow: WorkflowId) -> Option<Level> {
        let (rate, tickets) = self.row(workflow)?.limit?;
        Some(Level {
            at: self.at,
            tickets,
            rate,
        })
    }

    /// What `upstream` may send of `workflow`, requests/s; `None`: no limit.
    pub(super) fn announced(&self, workflow: WorkflowId, upstream: ProcessId) -> Option<f64> {
        let key = (workflow, upstream);
        let at = self
            .announced
            .binary_search_by_key(&key, |&(w, p, _)| (w, p));
        match at {
            Ok(at) => self.announced.get(at).map(|&(_, _, rate)| rate),
            Err(_) => self.row(workflow)?.newcomers,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&HEADER);
        put_varint(out, self.at.as_nanos());
        put_varint(out, self.rows.len() as u64);
        for row in &self.rows {
            let has = |flag, has: bool| if has { flag } else { 0 };
            put_varint(out, row.workflow.0.into());
            let flags = has(LIMITED, row.limit.is_some())
                | has(COMPLETION, row.completion.is_some())
                | has(TOTALS, row.totals.is_some())
                | has(CALLS, row.calls)
                | has(NEWCOMERS, row.newcomers.is_some());
            put_varint(out, flags);
            if let Some((rate, tickets)) = row.limit {
                out.extend_from_slice(&rate.to_le_bytes());
                out.extend_from_slice(&tickets.to_le_bytes());
            }
            if let Some(completion) = row.completion {
                put_varint(out, nanos(completion));
            }
            if let Some((service, work)) = row.totals {
                put_varint(out, nanos(service));
                put_varint(out, nanos(work));
            }
            if let Some(rate) = row.newcomers {
                out.extend_from_slice(&rate.to_le_bytes());
            }
        }
        put_varint(out, self.announced.len() as u64);
        for (workflow, process, rate) in &self.announced {
            put_varint(out, workflow.0.into());
            out.extend_from_slice(&process.0.to_le_bytes());
            out.extend_from_slice(&rate.to_le_bytes());
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let input = &mut bytes.strip_prefix(&HEADER)?;
        let at = Instant::from_nanos(take_varint(input)?);
        let mut rows = Vec::new();
        for _ in 0..take_varint(input)? {
            let workflow = WorkflowId(small(input).filter(|id| *id <= MAX_WORKFLOWS)?);
            let flags = take_varint(input)?;
            let mut row = Row {
                workflow,
                calls: flags & CALLS != 0,
                ..Row::default()
            };
            if flags & LIMITED != 0 {
                let limit = (float(input)?, float(input)?);
                row.limit =
                    Some(limit).filter(|(rate, tickets)| rate.is_finite() && tickets.is_finite());
            }
            if flags & COMPLETION != 0 {
                row.completion = Some(span(input)?);
            }
            if flags & TOTALS != 0 {
                row.totals = Some((span(input)?, span(input)?));
            }
            if flags & NEWCOMERS != 0 {
                row.newcomers = Some(float(input)?);
            }
            rows.push(row);
        }
        let mut announced = Vec::new();
        for _ in 0..take_varint(input)? {
            let workflow = WorkflowId(small(input)?);
            let (process, rest) = input.split_first_chunk()?;
            *input = rest;
            let process = ProcessId(u64::from_le_bytes(*process));
            announced.push((workflow, process, float(input)?));
        }
        input.is_empty().then_some(Self {
            at,
            rows,
            announced,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row() -> impl Strategy<Value = Row> {
        let span = || prop::option::of((0_u64..1 << 50).prop_map(Duration::from_nanos));
        let limit = prop::option::of((0.0..1e9_f64, 0.0..1e15_f64));
        (
            limit,
            span(),
            span(),
            any::<bool>(),
            prop::option::of(0.0..1e9_f64),
        )
            .prop_map(|(limit, completion, total, calls, newcomers)| Row {
                workflow: WorkflowId(0),
                limit,
                completion,
                totals: total.map(|total| (total, total / 2)),
                calls,
                newcomers,
            })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(at in any::<u64>(), rows in prop::collection::vec(row(), 0..20), processes in prop::collection::vec((any::<u64>(), 0.0..1e9_f64), 0..20)) {
            let number = |(id, row)| Row { workflow: WorkflowId(id), ..row };
            let mut announced: Vec<_> = processes.iter().map(|&(p, rate)| (WorkflowId(1), ProcessId(p), rate)).collect();
            announced.sort_unstable_by_key(|&(w, p, _)| (w, p));
            let written = Published {
                at: Instant::from_nanos(at),
                rows: (0_u16..).zip(rows).map(number).collect(),
                announced,
            };
            let mut bytes = Vec::new();
            written.encode(&mut bytes);
            let read = Published::decode(&bytes);
            prop_assert_eq!(read.as_ref(), Some(&written));
            for &(workflow, process, _) in &written.announced {
                prop_assert!(written.announced(workflow, process).is_some());
            }
            for cut in 0..bytes.len() {
                prop_assert_eq!(Published::decode(&bytes[..cut]), None);
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut ours = HEADER.to_vec();
            ours.extend(&bytes);
            let _ = (Published::decode(&bytes), Published::decode(&ours));
        }
    }
}
