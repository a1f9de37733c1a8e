//! Membership: one record of the VMs that share a process, and leases that outlive a crash.
//!
//! Slots and queued work are process-wide numbers, so the share of a VM that dies (a trap under
//! load) would stay booked forever. Each VM therefore claims a number, keeps its own share in
//! gauges of that number ([`crate::ledger`]), and renews a heartbeat. When a heartbeat is older
//! than [`LEASE`], one of the others (a compare-and-swap decides which) gives the dead VM's share
//! back.
//!
//! The lease is long against any pause of a healthy thread and against the service times of
//! requests that a dead VM left in the backend: a slot is given back late rather than twice. A VM
//! that comes back after its lease ran out notices, joins again under another number and books its
//! share anew.
//!
//! A VM may come back at the very moment in which another buries it. It writes its heartbeat before
//! it reads the list; the other marks the list before it reads the heartbeat a second time. One of
//! the two sees the other.
//!
//! A number may become free with a share still booked under it: the VM that buried it may not have
//! had the stage. Members check free numbers in turn, under the same mark as a burial.
//!
//! Several lists of VMs may be in one process: Envoy keeps shared data per `vm_id`, but numbers for
//! all of them. Totals are then of all lists, so no two VMs may have the same worker number. A VM
//! therefore takes a number only if no VM of any list renews its heartbeat, and an audit covers all
//! numbers that any list gave out. A number whose VMs are all of other lists looks free here: it is
//! swept when its heartbeat has been silent for longer than its own list needs to bury it.

use std::time::Duration;

use crate::host::{HostError, Number, Shared};
use crate::shared;
use crate::time::Instant;

/// A heartbeat older than this is a dead VM's.
pub const LEASE: Duration = Duration::from_secs(3);
/// Heartbeats are renewed this often.
const RENEW: Duration = Duration::from_millis(100);
/// Most VMs at once: worker threads, times two while code is being upgraded. The list is as long as
/// there were VMs.
pub const MAX_WORKERS: u32 = 1024;

const KEY: &str = "headgate/workers/1";
const ENTRY: usize = 8;
/// Attempts of a change: VMs that start at once may conflict, and the list is short.
const ATTEMPTS: u32 = 64;
/// Set in an entry while the VM with the rest of the nonce gives a dead VM's share back.
const BURIAL: u64 = 1 << 63;

/// The number of a VM among those that share the process; 0..[`MAX_WORKERS`].
pub type WorkerId = u32;

/// This VM's membership.
#[derive(Debug)]
pub struct Membership {
    id: WorkerId,
    nonce: u64,
    joins: u32,
    heartbeat: Number,
    renewed: Instant,
    ticked: Instant,
    judge_after: Instant,
    others: Vec<WorkerId>,
    /// The number of worker numbers ever given out, by any list, as last read.
    numbers: u32,
    all_numbers: Number,
    /// Each VM sets it to 1, so more than that is the sum of two processes.
    processes: Number,
    swept: Instant,
    /// The number from which on the next free one is looked for.
    sweep_from: WorkerId,
}

/// The result of [`Membership::tick`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// VMs that died. Only this caller gets them: it gives their share back, then calls
    /// [`Membership::buried`].
    pub dead: Vec<WorkerId>,
    /// Free numbers, marked as if they were of dead VMs. The caller gives back their bookings, then
    /// calls [`Membership::buried`].
    pub free: Vec<WorkerId>,
    /// Our own lease had run out and we have a new number: book our share again.
    pub rejoined: bool,
    /// Gauges read as more than this process wrote: after a hot restart Envoy adds the gauges of
    /// its parent process to those of the same name, in intervals and without a sign. Totals,
    /// shares and heads are as wrong.
    pub hot_restart: bool,
}

fn heartbeat_number(host: &impl Shared, id: WorkerId) -> Result<Number, HostError> {
    host.number(&format!("headgate.worker.{id}.heartbeat_ms"))
}

fn millis(now: Instant) -> u64 {
    // Never 0: that means "never renewed".
    (now.as_nanos() / 1_000_000).max(1)
}

impl Membership {
    /// Claims a number. `nonce` distinguishes VMs and must not be 0: any value that no other VM of
    /// the process draws.
    ///
    /// # Errors
    /// [`HostError`] when shared data is out of reach, or all numbers are taken.
    pub fn join(now: Instant, nonce: u64, host: &impl Shared) -> Result<Self, HostError> {
        let nonce = (nonce & !BURIAL).max(1);
        let all_numbers = host.number("headgate.worker_numbers")?;
        let processes = host.number("headgate.worker_processes")?;
        let id = claim(now, nonce, host)?;
        let heartbeat = heartbeat_number(host, id)?;
        host.set(processes, 1)?;
        let mut this = Self {
            id,
            nonce,
            joins: 1,
            heartbeat,
            renewed: now,
            ticked: now,
            judge_after: now + LEASE,
            others: Vec::new(),
            numbers: 0,
            all_numbers,
            processes,
            swept: now,
            sweep_from: 0,
        };
        this.look(&entries(host)?, host)?;
        Ok(this)
    }

    /// Our number.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Returns the number of times that we joined. A ledger that was opened at another count has
    /// its bookings under a number that was taken from us.
    #[must_use]
    pub fn joins(&self) -> u32 {
        self.joins
    }

    /// The other VMs, as of the last tick.
    #[must_use]
    pub fn others(&self) -> &[WorkerId] {
        &self.others
    }

    /// Returns the number of worker numbers ever given out in this process, ours among them: 0 up
    /// to this.
    #[must_use]
    pub fn numbers(&self) -> u32 {
        self.numbers
    }

    fn look(&mut self, list: &[u64], host: &impl Shared) -> Result<(), HostError> {
        self.others = others(list, self.id);
        let ours = (list.len() as u32).max(self.id + 1);
        let known = host.get(self.all_numbers)?;
        if known < u64::from(ours) {
            // A lower value may overwrite a higher one that another list writes now; its next tick
            // writes it again.
            host.set(self.all_numbers, u64::from(ours))?;
        }
        self.numbers = ours.max(known.min(u64::from(MAX_WORKERS)) as u32);
        Ok(())
    }

    /// Whether our lease may have run out, so that numbers booked under our id can't be trusted
    /// before the next [`Membership::tick`]. Free of host calls.
    #[must_use]
    pub fn is_doubtful(&self, now: Instant) -> bool {
        now.since(self.renewed) > LEASE / 2
    }

    /// Renews the heartbeat and looks after the others; cheap when called often.
    ///
    /// # Errors
    /// [`HostError`]; nothing is lost, the next tick tries again.
    pub fn tick(&mut self, now: Instant, host: &impl Shared) -> Result<Changes, HostError> {
        let mut changes = Changes::default();
        if now.since(self.ticked) > LEASE / 4 {
            // We were stopped; so may the others have been. Give all a lease's time to report back.
            self.judge_after = now + LEASE;
        }
        self.ticked = now;
        if now.since(self.renewed) < RENEW {
            return Ok(changes);
        }
        // Before the list is read: either this VM or the one that buries it sees the other.
        host.set(self.heartbeat, millis(now))?;
        host.set(self.processes, 1)?;
        let list = entries(host)?;
        if list.get(self.id as usize) != Some(&self.nonce) {
            self.id = claim(now, self.nonce, host)?;
            self.joins += 1;
            self.heartbeat = heartbeat_number(host, self.id)?;
            changes.rejoined = true;
        }
        let found = host.get(self.heartbeat)?;
        changes.hot_restart = found.saturating_sub(millis(now)) > LEASE.as_millis() as u64
            || host.get(self.processes)? > 1;
        self.renewed = now;
        self.look(&list, host)?;
        if now >= self.judge_after {
            for &other in &self.others {
                if self.bury(other, &list, now, host)? {
                    changes.dead.push(other);
                }
            }
        }
        if now.since(self.swept) >= LEASE {
            self.swept = now;
            changes.free.extend(self.sweep(now, &list, host)?);
        }
        Ok(changes)
    }

    /// Marks worker `other` as being buried by us, if it died.
    fn bury(
        &self,
        other: WorkerId,
        list: &[u64],
        now: Instant,
        host: &impl Shared,
    ) -> Result<bool, HostError> {
        let entry = list.get(other as usize).copied().unwrap_or_default();
        let mark = self.nonce | BURIAL;
        if entry == mark {
            // We couldn't finish it.
            return Ok(true);
        }
        if entry & BURIAL != 0 {
            let burier = entry & !BURIAL;
            return if list.contains(&burier) {
                Ok(false)
            } else {
                replace(other, entry, mark, host)
            };
        }
        let heartbeat = heartbeat_number(host, other)?;
        let stale = |last| is_older(last, LEASE, now);
        // Marked as ours before it is freed: no VM can claim the number while its share is still
        // booked. If we die meanwhile, another VM finds the mark of a dead VM.
        if !stale(host.get(heartbeat)?) || !replace(other, entry, mark, host)? {
            return Ok(false);
        }
        if stale(host.get(heartbeat)?) {
            return Ok(true);
        }
        // It came back. If it saw our mark already, it has another number by now and this one's
        // lease runs out.
        replace(other, mark, entry, host)?;
        Ok(false)
    }

    /// Marks worker `dead` as being buried by us, whatever its heartbeat. Returns false if it has
    /// left, is being buried, or is this one.
    ///
    /// # Errors
    /// [`HostError`]; its lease then runs out instead.
    pub fn mark(&self, dead: WorkerId, host: &impl Shared) -> Result<bool, HostError> {
        let entry = entries(host)?.get(dead as usize).copied();
        match entry.unwrap_or_default() {
            0 => Ok(false),
            entry if entry & BURIAL != 0 || dead == self.id => Ok(false),
            entry => replace(dead, entry, self.nonce | BURIAL, host),
        }
    }

    /// Claims the next number that no VM of any list has for clean-up by this worker.
    fn sweep(
        &mut self,
        now: Instant,
        list: &[u64],
        host: &impl Shared,
    ) -> Result<Option<WorkerId>, HostError> {
        let is_free = |id: &WorkerId| list.get(*id as usize).is_none_or(|&nonce| nonce == 0);
        let mut from_here = self.sweep_from..self.numbers;
        let Some(next) = from_here
            .find(is_free)
            .or_else(|| (0..self.numbers).find(is_free))
        else {
            return Ok(None);
        };
        self.sweep_from = next + 1;
        // If another list has it, that list buries it first.
        let last = host.get(heartbeat_number(host, next)?)?;
        if !is_older(last, 2 * LEASE, now) {
            return Ok(None);
        }
        let marked = replace(next, 0, self.nonce | BURIAL, host)?;
        Ok(marked.then_some(next))
    }

    /// Frees the number of a dead VM whose share has been given back.
    ///
    /// # Errors
    /// [`HostError`]; another VM buries it again when the lease runs out.
    pub fn buried(&mut self, dead: WorkerId, host: &impl Shared) -> Result<(), HostError> {
        self.others.retain(|&other| other != dead);
        replace(dead, self.nonce | BURIAL, 0, host).map(drop)
    }

    /// Gives the number back; the caller has given its share back before.
    ///
    /// # Errors
    /// [`HostError`]; the lease then runs out instead.
    pub fn leave(self, host: &impl Shared) -> Result<(), HostError> {
        if replace(self.id, self.nonce, 0, host)? {
            // Without it the number would be free only when the lease has run out.
            host.set(self.heartbeat, 0)?;
        }
        Ok(())
    }
}

fn others(list: &[u64], own: WorkerId) -> Vec<WorkerId> {
    (0u32..)
        .zip(list)
        .filter(|&(id, &nonce)| nonce != 0 && id != own)
        .map(|(id, _)| id)
        .collect()
}

fn entries(host: &impl Shared) -> Result<Vec<u64>, HostError> {
    Ok(host
        .load(KEY)?
        .map_or_else(Vec::new, |(bytes, _)| decode(&bytes)))
}

fn decode(bytes: &[u8]) -> Vec<u64> {
    let entry = |chunk: &[u8]| chunk.try_into().map_or(0, u64::from_le_bytes);
    let entries = bytes.chunks_exact(ENTRY).map(entry);
    entries.take(MAX_WORKERS as usize).collect()
}

/// Changes the list. `change` returns `None` to leave it as it is.
fn update<T>(
    host: &impl Shared,
    mut change: impl FnMut(&mut Vec<u64>) -> Option<T>,
) -> Result<Option<T>, HostError> {
    // The format is not that of other records: workers of another version read it, too.
    shared::change_bytes(host, KEY, ATTEMPTS, |bytes| {
        let mut list = decode(bytes);
        let result = change(&mut list);
        if result.is_some() {
            *bytes = list.iter().flat_map(|nonce| nonce.to_le_bytes()).collect();
        }
        (result.is_some(), result)
    })
}

/// Claims the lowest number that no VM has, neither of this list nor of another one.
fn claim(now: Instant, nonce: u64, host: &impl Shared) -> Result<WorkerId, HostError> {
    let mark = nonce | BURIAL;
    let mut from: WorkerId = 0;
    while from < MAX_WORKERS {
        let claimed = update(host, |list| {
            let is_free = |id: &WorkerId| list.get(*id as usize).is_none_or(|&nonce| nonce == 0);
            let id = (from..MAX_WORKERS).find(is_free)?;
            list.resize(list.len().max(id as usize + 1), 0);
            // Marked until it has a heartbeat: its last owner's is stale, by which others would
            // bury us at once.
            list[id as usize] = mark;
            Some(id)
        })?;
        let Some(id) = claimed else {
            break;
        };
        let occupied = occupy(id, now, host);
        let entry = if let Ok(true) = occupied { nonce } else { 0 };
        let replaced = replace(id, mark, entry, host)?;
        if occupied? && replaced {
            return Ok(id);
        }
        from = id + 1;
    }
    Err(HostError::Call {
        call: "join: all worker numbers are taken",
        status: 0,
    })
}

/// Begins the heartbeat of worker `id`, unless a VM of another list has that number. Of two VMs
/// that begin it at once at most one succeeds, as each adds before it reads; the other one takes
/// its addition back before the first renewal.
fn occupy(id: WorkerId, now: Instant, host: &impl Shared) -> Result<bool, HostError> {
    let heartbeat = heartbeat_number(host, id)?;
    let last = host.get(heartbeat)?;
    if !is_older(last, LEASE, now) {
        return Ok(false);
    }
    let step = millis(now).cast_signed() - last.cast_signed();
    host.add_to(heartbeat, step)?;
    if host.get(heartbeat)? == millis(now) {
        return Ok(true);
    }
    host.add_to(heartbeat, -step)?;
    Ok(false)
}

/// Whether a heartbeat was last renewed longer than `age` ago, or never.
fn is_older(last: u64, age: Duration, now: Instant) -> bool {
    last == 0 || millis(now).saturating_sub(last) > age.as_millis() as u64
}

/// Replaces the entry of `id` if it is still `from`, 0 where the list is shorter; true for the one
/// caller that did.
fn replace(id: WorkerId, from: u64, to: u64, host: &impl Shared) -> Result<bool, HostError> {
    let replaced = update(host, |list| {
        let at = id as usize;
        if list.get(at).copied().unwrap_or_default() != from {
            return None;
        }
        list.resize(list.len().max(at + 1), 0);
        list[at] = to;
        Some(())
    })?;
    Ok(replaced.is_some())
}

#[cfg(test)]
mod tests;
