//! The state of [`Adaptation`] as bytes: for the worker that goes on when the one that ran Algorithm 1 can't.
//!
//! Little-endian, version 1. Numbers are f32 (a relative error of 6·10⁻⁸ is far below that of any estimate), points in
//! time ages in milliseconds before the last run:
//!
//! ```text
//! u8 1 · u64 last run, ns · 4 × f32 utilization
//! u16 workflows:  u16 id · u8 flags · u64 hash of the name · 7 × f32 estimates · 3 × f32 rates · u16 service · f32 memory
//! u16 services:   u16 id · u64 hash of the name
//! u16 downstream: u16 workflow · u16 service · u64 process · f32 calls · u32 age of calls · f32 rate · u32 its age
//! u16 upstream:   u16 workflow · u64 process · f32 sent · u32 age · f32 rate
//! ```
//!
//! Reading is strict: ids ascend, numbers are in their ranges, counts within the bounds, and nothing follows. Names come
//! by assignment, as for a new one; their hashes tell whether ids still stand for the same.

use crate::config::{MAX_WORKFLOWS, WorkflowsConfig};
use crate::time::Instant;
use crate::workflows::downstream::{self, Entry as Process};
use crate::workflows::estimates::{Estimates, Quotient};
use crate::workflows::sharing::Memory;
use crate::workflows::upstream::{self, Entry as Caller};
use crate::workflows::{OTHER, OTHER_NAME, ProcessId, ServiceId, WorkflowId};

use super::{Adaptation, Bottleneck, MAX_SERVICES, Name, Service, Workflow};

const VERSION: u8 = 1;
/// Age of what never was.
const NEVER: u32 = u32::MAX;

/// Flags of a workflow.
const NAMED: u8 = 1;
const SEEN: u8 = 1 << 1;
const LOCAL: u8 = 1 << 2;
const REMOTE: u8 = 1 << 3;
const HAS_RATE: u8 = 1 << 4;
const WANTS_MORE: u8 = 1 << 5;
const FLAGS: u8 = (1 << 6) - 1;

/// Why bytes are no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Written by another version.
    #[error("version {0} of the state of workflows; this one reads version 1")]
    Version(u8),
    /// Too short, too long, or with a value that can't be.
    #[error("the state of workflows is damaged at byte {0}")]
    Damaged(usize),
}

impl Adaptation {
    /// Appends what [`Adaptation::from_bytes`] reads: at most 57 bytes a workflow, 10 a service, 28 a pair of a workflow
    /// and a downstream process, 22 one of a workflow and an upstream process.
    pub fn to_bytes(&self, out: &mut Vec<u8>) {
        let mut w = Writer { out, now: self.now };
        w.out.push(VERSION);
        w.u64(self.now.as_nanos());
        for quotient in &self.utilization {
            w.quotient(*quotient);
        }
        let known =
            |(_, workflow): &(usize, &Workflow)| workflow.seen || workflow.name.hash.is_some();
        let workflows = || self.workflows.iter().enumerate().filter(known);
        w.u16(workflows().count());
        for (id, workflow) in workflows() {
            w.u16(id);
            w.workflow(workflow, self.memory[id]);
        }
        let services = || {
            let all = self.services.iter().enumerate();
            all.filter_map(|(id, service)| Some((id, service.name.hash?)))
        };
        w.u16(services().count());
        for (id, hash) in services() {
            w.u16(id);
            w.u64(hash);
        }
        w.u16(self.downstream.entries.len());
        for entry in self.downstream.entries.iter() {
            let (workflow, service, process) = entry.key;
            w.u16(workflow.0.into());
            w.u16(service.0.into());
            w.u64(process.0);
            w.f32(entry.calls);
            w.age(entry.called);
            w.f32(entry.heard.map_or(0.0, |(rate, _)| rate));
            w.age(entry.heard.map(|(_, at)| at));
        }
        w.u16(self.upstream.entries.len());
        for entry in self.upstream.entries.iter() {
            let (workflow, process) = entry.key;
            w.u16(workflow.0.into());
            w.u64(process.0);
            w.f32(entry.sent);
            w.age(Some(entry.last));
            w.f32(entry.rate);
        }
    }

    /// Goes on where another worker of the process stopped. Names of workflows and services are assigned anew; what was
    /// measured under an id stays if it is assigned the same name again.
    ///
    /// # Errors
    /// [`StateError`]: nothing was taken over; begin with [`Adaptation::new`].
    pub fn from_bytes(config: &WorkflowsConfig, bytes: &[u8]) -> Result<Self, StateError> {
        match bytes.first() {
            Some(&VERSION) => {}
            Some(&version) => return Err(StateError::Version(version)),
            None => return Err(StateError::Damaged(0)),
        }
        let mut reader = Reader {
            bytes,
            at: 1,
            now: Instant::default(),
        };
        let adaptation = reader.adaptation(config);
        let complete = reader.at == bytes.len();
        let damaged = StateError::Damaged(reader.at);
        adaptation.filter(|_| complete).ok_or(damaged)
    }
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    now: Instant,
}

impl Writer<'_> {
    /// Ids and counts are far below 65,536.
    fn u16(&mut self, x: usize) {
        self.out.extend_from_slice(&(x as u16).to_le_bytes());
    }

    fn u64(&mut self, x: u64) {
        self.out.extend_from_slice(&x.to_le_bytes());
    }

    fn f32(&mut self, x: f64) {
        // Beyond the range of an f32 there is only one infinity; a finite number stays one.
        let x = if x.is_finite() {
            x.min(f64::from(f32::MAX)) as f32
        } else {
            f32::INFINITY
        };
        self.out.extend_from_slice(&x.to_le_bytes());
    }

    fn age(&mut self, at: Option<Instant>) {
        let age = at.map_or(NEVER, |at| {
            let millis = self.now.since(at).as_millis();
            u32::try_from(millis).unwrap_or(NEVER - 1).min(NEVER - 1)
        });
        self.out.extend_from_slice(&age.to_le_bytes());
    }

    fn quotient(&mut self, quotient: Quotient) {
        self.f32(quotient.sum);
        self.f32(quotient.count);
    }

    fn workflow(&mut self, workflow: &Workflow, memory: Memory) {
        let service = match workflow.bottleneck {
            Some(Bottleneck::Service(service)) => Some(service),
            Some(Bottleneck::Local) | None => None,
        };
        let mut flags = 0;
        for (flag, is_set) in [
            (NAMED, workflow.name.hash.is_some()),
            (SEEN, workflow.seen),
            (LOCAL, workflow.bottleneck == Some(Bottleneck::Local)),
            (REMOTE, service.is_some()),
            (HAS_RATE, memory.rate.is_some()),
            (WANTS_MORE, memory.wants_more),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        self.out.push(flags);
        self.u64(workflow.name.hash.unwrap_or(0));
        let known = &workflow.estimates;
        self.quotient(known.offered);
        for x in [
            known.admitted,
            known.completed,
            known.service,
            known.resource,
            known.completion,
            workflow.local,
            workflow.downstream,
            workflow.rate,
        ] {
            self.f32(x);
        }
        self.u16(service.map_or(0, |service| service.0.into()));
        self.f32(memory.rate.unwrap_or(0.0));
    }
}

/// `None` wherever something can't be; `at` tells where.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    now: Instant,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = self.bytes.get(self.at..)?.first_chunk()?;
        self.at += N;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take()?))
    }

    /// 0 or more, or infinite.
    fn rate(&mut self) -> Option<f64> {
        let x = f32::from_le_bytes(self.take()?);
        (x >= 0.0).then(|| x.into())
    }

    fn number(&mut self) -> Option<f64> {
        self.rate().filter(|x| x.is_finite())
    }

    fn at(&mut self) -> Option<Option<Instant>> {
        let age = u32::from_le_bytes(self.take()?);
        let at = self.now - std::time::Duration::from_millis(age.into());
        Some((age != NEVER).then_some(at))
    }

    /// A count of no more than `most`.
    fn count(&mut self, most: usize) -> Option<u16> {
        self.u16().filter(|&count| usize::from(count) <= most)
    }

    fn quotient(&mut self) -> Option<Quotient> {
        let (sum, count) = (self.number()?, self.number()?);
        Some(Quotient { sum, count })
    }

    fn workflow_id(&mut self) -> Option<WorkflowId> {
        let id = self.u16().filter(|&id| id <= MAX_WORKFLOWS)?;
        Some(WorkflowId(id))
    }

    fn adaptation(&mut self, config: &WorkflowsConfig) -> Option<Adaptation> {
        let mut read = Adaptation::new(config);
        self.now = Instant::from_nanos(self.u64()?);
        read.now = self.now;
        read.utilization = [self.quotient()?, self.quotient()?];
        let mut last = None;
        for _ in 0..self.count(usize::from(MAX_WORKFLOWS) + 1)? {
            let id = self.workflow_id()?;
            ascending(&mut last, id)?;
            let (workflow, memory) = self.workflow()?;
            *read.workflow(id)? = workflow;
            read.memory[usize::from(id.0)] = memory;
        }
        read.assign(OTHER, OTHER_NAME);
        let mut last = None;
        for _ in 0..self.count(MAX_SERVICES)? {
            let id = usize::from(self.u16()?);
            ascending(&mut last, id)?;
            if id >= MAX_SERVICES {
                return None;
            }
            read.services.resize_with(id + 1, Service::default);
            read.services[id].name.hash = Some(self.u64()?);
        }
        let mut last = None;
        for _ in 0..self.count(downstream::TOTAL)? {
            let entry = self.process()?;
            ascending(&mut last, entry.key)?;
            read.downstream.entries.push(entry);
        }
        let mut last = None;
        for _ in 0..self.count(upstream::TOTAL)? {
            let entry = self.caller()?;
            ascending(&mut last, entry.key)?;
            read.upstream.entries.push(entry);
        }
        Some(read)
    }

    fn workflow(&mut self) -> Option<(Workflow, Memory)> {
        let [flags] = self.take()?;
        let has = |flag| flags & flag != 0;
        if flags & !FLAGS != 0 || has(LOCAL) && has(REMOTE) {
            return None;
        }
        let hash = self.u64()?;
        let estimates = Estimates {
            offered: self.quotient()?,
            admitted: self.number()?,
            completed: self.number()?,
            service: self.number()?,
            resource: self.number()?,
            completion: self.number()?,
        };
        let (local, downstream, rate) = (self.rate()?, self.rate()?, self.rate()?);
        let service = ServiceId(self.u16()?);
        let remembered = self.number()?;
        let memory = Memory {
            rate: has(HAS_RATE).then_some(remembered),
            wants_more: has(WANTS_MORE),
        };
        let workflow = Workflow {
            name: Name {
                text: String::new(),
                hash: has(NAMED).then_some(hash),
            },
            seen: has(SEEN),
            estimates,
            local,
            downstream,
            rate,
            bottleneck: match (has(LOCAL), has(REMOTE)) {
                (true, _) => Some(Bottleneck::Local),
                (_, true) => Some(Bottleneck::Service(service)),
                (false, false) => None,
            },
            ..Workflow::default()
        };
        Some((workflow, memory))
    }

    fn process(&mut self) -> Option<Process> {
        let (workflow, service) = (self.workflow_id()?, ServiceId(self.u16()?));
        let process = ProcessId(self.u64()?);
        let (calls, called) = (self.number()?, self.at()?);
        let (rate, heard) = (self.rate()?, self.at()?);
        Some(Process {
            key: (workflow, service, process),
            calls,
            called,
            heard: heard.map(|at| (rate, at)),
        })
    }

    fn caller(&mut self) -> Option<Caller> {
        let (workflow, process) = (self.workflow_id()?, ProcessId(self.u64()?));
        let (sent, last) = (self.number()?, self.at()??);
        Some(Caller {
            key: (workflow, process),
            sent,
            last,
            rate: self.rate()?,
        })
    }
}

/// `None` unless `next` is above the one before.
fn ascending<T: Ord + Copy>(last: &mut Option<T>, next: T) -> Option<()> {
    let ascends = last.is_none_or(|last| last < next);
    *last = Some(next);
    ascends.then_some(())
}
