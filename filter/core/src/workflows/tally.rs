//! What a worker measured since it last told the leader.
//!
//! Each worker has a *mailbox*, a blob into which it adds what it measured, and which the leader empties, both
//! by compare-and-swap: nothing is counted twice or lost when one of them dies, when the leader changes, or
//! when nobody leads for a while. A dead worker's mailbox goes to whoever buries it.
//!
//! Pairs with other processes are bounded ([`MAX_PAIRS`]); what exceeds that counts for
//! [`ProcessId::UNKNOWN`].

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::adaptation::{Calls, Heard, Measured, UpstreamDemand};
use super::{ProcessId, ServiceId, WorkflowId};
use crate::config::MAX_WORKFLOWS;
use crate::histogram::{put_varint, take_varint};
use crate::host::{Expected, Host, HostError};
use crate::time::{Instant, nanos};

/// Pairs of workflow and other process of which a worker keeps count, in each direction.
pub(super) const MAX_PAIRS: usize = 4096;

/// First bytes of a mailbox that holds something.
const HEADER: [u8; 3] = [b'H', b'M', 1];
const ATTEMPTS: u32 = 4;

/// Requests of a workflow that entered the mesh here and were served.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Entered {
    /// How many.
    pub(super) requests: u64,
    /// Service time of them and all calls below, added up.
    pub(super) service: Duration,
    /// Work of them and all calls below, added up.
    pub(super) work: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Row {
    pub(super) measured: Measured,
    pub(super) entered: Entered,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// By workflow.
    rows: Vec<Row>,
    /// Workflows that have something.
    dirty: Vec<u16>,
    calls: HashMap<(WorkflowId, ServiceId, ProcessId), u64>,
    heard: HashMap<(WorkflowId, ServiceId, ProcessId), (f64, Instant)>,
    upstream: HashMap<(WorkflowId, ProcessId), u64>,
    /// Slot time in use.
    pub(super) busy: Duration,
}

/// Adds to one of a bounded number of sums.
fn count<K: Eq + Hash>(sums: &mut HashMap<K, u64>, key: K, otherwise: K, n: u64) {
    let full = sums.len() >= MAX_PAIRS;
    let key = if full && !sums.contains_key(&key) {
        otherwise
    } else {
        key
    };
    let sum = sums.entry(key).or_default();
    *sum = sum.saturating_add(n);
}

impl Tally {
    /// The row of a workflow, to be added to.
    pub(super) fn row(&mut self, workflow: WorkflowId) -> &mut Row {
        let at = usize::from(workflow.0);
        if at >= self.rows.len() {
            self.rows.resize(at + 1, Row::default());
        }
        let row = &mut self.rows[at];
        if *row == Row::default() {
            row.measured.workflow = workflow;
            self.dirty.push(workflow.0);
        }
        row
    }

    pub(super) fn called(
        &mut self,
        workflow: WorkflowId,
        service: ServiceId,
        process: ProcessId,
        n: u64,
    ) {
        let unknown = (workflow, service, ProcessId::UNKNOWN);
        count(&mut self.calls, (workflow, service, process), unknown, n);
    }

    pub(super) fn heard(&mut self, heard: &Heard) {
        let key = (heard.workflow, heard.service, heard.process);
        let full = self.heard.len() >= MAX_PAIRS;
        if full && !self.heard.contains_key(&key) {
            return;
        }
        let latest = self.heard.entry(key).or_insert((heard.rate, heard.at));
        if heard.at >= latest.1 {
            *latest = (heard.rate, heard.at);
        }
    }

    pub(super) fn arrived(&mut self, workflow: WorkflowId, upstream: ProcessId, n: u64) {
        let unknown = (workflow, ProcessId::UNKNOWN);
        count(&mut self.upstream, (workflow, upstream), unknown, n);
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        let at = |&id: &u16| self.rows.get(usize::from(id));
        self.dirty.iter().filter_map(at)
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = Calls> {
        self.calls
            .iter()
            .map(|(&(workflow, service, process), &count)| Calls {
                workflow,
                service,
                process,
                count,
            })
    }

    pub(super) fn rates(&self) -> impl Iterator<Item = Heard> {
        self.heard
            .iter()
            .map(|(&(workflow, service, process), &(rate, at))| Heard {
                workflow,
                service,
                process,
                rate,
                at,
            })
    }

    pub(super) fn upstream(&self) -> impl Iterator<Item = UpstreamDemand> {
        self.upstream
            .iter()
            .map(|(&(workflow, process), &offered)| UpstreamDemand {
                workflow,
                process,
                offered,
            })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dirty.is_empty()
            && self.calls.is_empty()
            && self.heard.is_empty()
            && self.upstream.is_empty()
            && self.busy.is_zero()
    }

    pub(super) fn clear(&mut self) {
        for id in self.dirty.drain(..) {
            if let Some(row) = self.rows.get_mut(usize::from(id)) {
                *row = Row::default();
            }
        }
        self.calls.clear();
        self.heard.clear();
        self.upstream.clear();
        self.busy = Duration::ZERO;
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&HEADER);
        put_varint(out, nanos(self.busy));
        put_varint(out, self.dirty.len() as u64);
        for row in self.rows() {
            let Measured {
                workflow,
                offered,
                admitted,
                completed,
                service,
                completion,
                resource,
            } = row.measured;
            let Entered {
                requests,
                service: total,
                work,
            } = row.entered;
            put_varint(out, workflow.0.into());
            for number in [
                offered,
                admitted,
                completed,
                nanos(service),
                nanos(completion),
            ] {
                put_varint(out, number);
            }
            out.extend_from_slice(&resource.to_le_bytes());
            for number in [requests, nanos(total), nanos(work)] {
                put_varint(out, number);
            }
        }
        put_varint(out, self.calls.len() as u64);
        for calls in self.calls() {
            put_pair(out, calls.workflow, calls.process);
            put_varint(out, calls.service.0.into());
            put_varint(out, calls.count);
        }
        put_varint(out, self.heard.len() as u64);
        for heard in self.rates() {
            put_pair(out, heard.workflow, heard.process);
            put_varint(out, heard.service.0.into());
            out.extend_from_slice(&heard.rate.to_le_bytes());
            put_varint(out, heard.at.as_nanos());
        }
        put_varint(out, self.upstream.len() as u64);
        for demand in self.upstream() {
            put_pair(out, demand.workflow, demand.process);
            put_varint(out, demand.offered);
        }
    }

    /// Adds what a mailbox holds; `None` where it is damaged, of which what came before the damage counts.
    fn absorb(&mut self, bytes: &[u8]) -> Option<()> {
        let input = &mut bytes.strip_prefix(&HEADER)?;
        self.busy = self.busy.saturating_add(span(input)?);
        for _ in 0..take_varint(input)? {
            let workflow = WorkflowId(small(input).filter(|id| *id <= MAX_WORKFLOWS)?);
            let numbers = [
                take_varint(input)?,
                take_varint(input)?,
                take_varint(input)?,
            ];
            let (service, completion) = (span(input)?, span(input)?);
            let resource = float(input)?;
            let (requests, total, work) = (take_varint(input)?, span(input)?, span(input)?);
            let row = self.row(workflow);
            let measured = &mut row.measured;
            measured.offered = measured.offered.saturating_add(numbers[0]);
            measured.admitted = measured.admitted.saturating_add(numbers[1]);
            measured.completed = measured.completed.saturating_add(numbers[2]);
            measured.service = measured.service.saturating_add(service);
            measured.completion = measured.completion.saturating_add(completion);
            measured.resource += resource;
            let entered = &mut row.entered;
            entered.requests = entered.requests.saturating_add(requests);
            entered.service = entered.service.saturating_add(total);
            entered.work = entered.work.saturating_add(work);
        }
        for _ in 0..take_varint(input)? {
            let (workflow, process) = pair(input)?;
            let service = ServiceId(small(input)?);
            self.called(workflow, service, process, take_varint(input)?);
        }
        for _ in 0..take_varint(input)? {
            let (workflow, process) = pair(input)?;
            self.heard(&Heard {
                workflow,
                process,
                service: ServiceId(small(input)?),
                rate: float(input)?,
                at: Instant::from_nanos(take_varint(input)?),
            });
        }
        for _ in 0..take_varint(input)? {
            let (workflow, process) = pair(input)?;
            self.arrived(workflow, process, take_varint(input)?);
        }
        Some(())
    }

    /// Adds all of this to the mailbox at `key`, and is empty then.
    ///
    /// # Errors
    /// [`HostError`]; all of it is still here.
    pub(super) fn deposit(&mut self, host: &impl Host, key: &str) -> Result<(), HostError> {
        if self.is_empty() {
            return Ok(());
        }
        let mut own = Vec::new();
        self.encode(&mut own);
        for _ in 0..ATTEMPTS {
            let stored = match host.load(key)? {
                None => host.store(key, &own, Expected::Absent),
                Some((there, version)) if there.is_empty() => {
                    host.store(key, &own, Expected::Version(version))
                }
                Some((there, version)) => {
                    let mut sum = Self::default();
                    // A damaged mailbox is replaced by what can be read of it.
                    sum.absorb(&there).unwrap_or(());
                    sum.absorb(&own).unwrap_or(());
                    let mut both = Vec::new();
                    sum.encode(&mut both);
                    host.store(key, &both, Expected::Version(version))
                }
            };
            match stored {
                Ok(()) => {
                    self.clear();
                    return Ok(());
                }
                Err(HostError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(HostError::Conflict)
    }

    /// Empties the mailbox at `key` into this.
    ///
    /// # Errors
    /// [`HostError`]; the mailbox is as it was.
    pub(super) fn collect(&mut self, host: &impl Host, key: &str) -> Result<(), HostError> {
        for _ in 0..ATTEMPTS {
            let Some((bytes, version)) = host.load(key)?.filter(|(bytes, _)| !bytes.is_empty())
            else {
                return Ok(());
            };
            match host.store(key, &[], Expected::Version(version)) {
                Ok(()) => {
                    self.absorb(&bytes).unwrap_or(());
                    return Ok(());
                }
                Err(HostError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(HostError::Conflict)
    }
}

fn put_pair(out: &mut Vec<u8>, workflow: WorkflowId, process: ProcessId) {
    put_varint(out, workflow.0.into());
    out.extend_from_slice(&process.0.to_le_bytes());
}

fn pair(input: &mut &[u8]) -> Option<(WorkflowId, ProcessId)> {
    let workflow = WorkflowId(small(input)?);
    Some((workflow, ProcessId(u64::from_le_bytes(eight(input)?))))
}

pub(super) fn small(input: &mut &[u8]) -> Option<u16> {
    take_varint(input)?.try_into().ok()
}

fn eight(input: &mut &[u8]) -> Option<[u8; 8]> {
    let (first, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*first)
}

/// A number that is one, and not negative.
pub(super) fn float(input: &mut &[u8]) -> Option<f64> {
    let value = f64::from_le_bytes(eight(input)?);
    (value >= 0.0).then_some(value)
}

pub(super) fn span(input: &mut &[u8]) -> Option<Duration> {
    take_varint(input).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::memory::{Fault, MemoryHost};

    const W: WorkflowId = WorkflowId(7);

    fn tally(offered: u64) -> Tally {
        let mut tally = Tally::default();
        let row = tally.row(W);
        row.measured.offered = offered;
        row.measured.resource = 0.5;
        row.entered.requests = 1;
        tally.called(W, ServiceId(2), ProcessId(9), 3);
        tally.arrived(W, ProcessId(4), offered);
        tally.heard(&Heard {
            workflow: W,
            service: ServiceId(2),
            process: ProcessId(9),
            rate: offered as f64,
            at: Instant::from_nanos(offered),
        });
        tally.busy = Duration::from_millis(offered);
        tally
    }

    fn offered(tally: &Tally) -> Vec<(u64, u64)> {
        let rows = tally.rows();
        rows.map(|row| (row.measured.offered, row.entered.requests))
            .collect()
    }

    #[test]
    fn a_mailbox_adds_up_until_it_is_emptied() {
        let host = MemoryHost::new();
        let (mut first, mut second) = (tally(10), tally(5));
        first.deposit(&host, "m").unwrap();
        assert!(first.is_empty());
        second.deposit(&host, "m").unwrap();
        let mut leader = Tally::default();
        leader.collect(&host, "m").unwrap();
        assert_eq!(offered(&leader), [(15, 2)]);
        assert_eq!(leader.busy, Duration::from_millis(15));
        assert_eq!(leader.calls().map(|c| c.count).collect::<Vec<_>>(), [6]);
        assert_eq!(
            leader.upstream().map(|d| d.offered).collect::<Vec<_>>(),
            [15]
        );
        // What was heard last counts.
        assert_eq!(leader.rates().map(|h| h.rate).collect::<Vec<_>>(), [10.0]);
        leader.collect(&host, "m").unwrap();
        assert_eq!(offered(&leader), [(15, 2)], "it is empty now");
    }

    #[test]
    fn what_could_not_be_told_is_told_later() {
        for fault in [Fault::LoadFails, Fault::StoreFails, Fault::StoreConflicts] {
            let host = MemoryHost::new();
            let mut worker = tally(10);
            host.inject(fault, ATTEMPTS);
            assert!(worker.deposit(&host, "m").is_err());
            host.inject(fault, 0);
            worker.deposit(&host, "m").unwrap();
            let mut leader = Tally::default();
            host.inject(fault, ATTEMPTS);
            assert!(leader.collect(&host, "m").is_err() && leader.is_empty());
            host.inject(fault, 0);
            leader.collect(&host, "m").unwrap();
            assert_eq!(offered(&leader), [(10, 1)], "{fault:?}");
        }
    }

    #[test]
    fn pairs_are_bounded_and_none_is_lost() {
        let mut tally = Tally::default();
        for n in 1..=2 * MAX_PAIRS as u64 {
            tally.arrived(W, ProcessId(n), 1);
            tally.called(W, ServiceId(1), ProcessId(n), 1);
        }
        assert!(tally.upstream().count() <= MAX_PAIRS + 1);
        let sum: u64 = tally.upstream().map(|d| d.offered).sum();
        assert_eq!(sum, 2 * MAX_PAIRS as u64);
        let sum: u64 = tally.calls().map(|c| c.count).sum();
        assert_eq!(sum, 2 * MAX_PAIRS as u64);
    }

    proptest! {
        #[test]
        fn any_mailbox_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), ours in any::<bool>()) {
            let mut mailbox = if ours { HEADER.to_vec() } else { Vec::new() };
            mailbox.extend(bytes);
            let host = MemoryHost::new();
            host.store("m", &mailbox, Expected::Absent).unwrap();
            tally(3).deposit(&host, "m").unwrap();
            let mut leader = Tally::default();
            leader.collect(&host, "m").unwrap();
            prop_assert!(offered(&leader).iter().any(|o| o.0 >= 3));
        }
    }
}
