//! Membership: a record of the VMs that share a process, and leases that detect crashed VMs.
//!
//! Slots and queued work are process-wide numbers, so without leases the share of a VM that dies
//! (by a trap under load) would stay booked forever. So each VM claims a worker number, keeps its
//! own share in gauges of that number ([`crate::ledger`]), and renews a heartbeat. If a heartbeat
//! is older than [`LEASE`], another VM, selected by a compare-and-swap, releases the dead VM's
//! share. The code calls this release a burial.
//!
//! The lease is long compared with any pause of a healthy thread, and with the service times of
//! requests that a dead VM left in the backend. So a slot is given back late rather than twice. A
//! VM that resumes after its lease has expired detects that, joins again under another number and
//! books its share again.
//!
//! A VM may resume at the moment when another VM cleans it up. The resuming VM writes its heartbeat
//! before it reads the list. The other VM marks the list before it reads the heartbeat a second
//! time. So at least one of the two sees the other's write.
//!
//! A number may become free while a share is still booked under it, because the VM that cleaned up
//! its owner may not have had the stage. So members check free numbers in turn, under the same mark
//! as a clean-up. The code calls this check a sweep.
//!
//! One process may have several lists of VMs, because Envoy keeps shared data per `vm_id`, but
//! gauges for all `vm_id`s together. Totals are then sums over all lists, so no two VMs may have
//! the same worker number. A VM therefore takes a number only if no VM of any list renews that
//! number's heartbeat, and an audit covers all numbers that any list gave out. A number that
//! another list gave out looks free in this list. It is swept only if its heartbeat has stopped for
//! longer than the other list needs to clean up its owner.

use std::time::Duration;

use headgate_strategies::host::{HostError, Number, Shared};
use headgate_strategies::shared;
use headgate_strategies::time::Instant;

/// The age of a heartbeat from which its VM counts as dead.
pub const LEASE: Duration = Duration::from_secs(3);
/// The time between two renewals of a heartbeat.
const RENEW: Duration = Duration::from_millis(100);
/// The maximum number of VMs at once. Each worker thread has one VM, and two while code is
/// upgraded. The list has an entry for every number up to the highest that was ever claimed.
pub const MAX_WORKERS: u32 = 1024;

const KEY: &str = "headgate/workers/1";
const ENTRY: usize = 8;
/// The number of attempts of a change to the list. VMs that start at the same time may conflict,
/// and an attempt is cheap.
const ATTEMPTS: u32 = 64;
/// The bit that marks an entry while a VM releases a dead VM's share. The other bits are the nonce
/// of the releasing VM.
const BURIAL: u64 = 1 << 63;

/// The number of a VM among the VMs that share the process, 0..[`MAX_WORKERS`].
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
    /// The number of worker numbers that any list ever gave out, as last read.
    numbers: u32,
    all_numbers: Number,
    /// Each VM sets this number to 1, so a larger value is a sum over two processes.
    processes: Number,
    swept: Instant,
    /// The number at which the next search for a free number starts.
    sweep_from: WorkerId,
}

/// The result of [`Membership::tick`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// VMs that died, each reported to one caller only. The caller releases their shares, then
    /// calls [`Membership::buried`].
    pub dead: Vec<WorkerId>,
    /// Free numbers, which are marked like the numbers of dead VMs. The caller releases their
    /// bookings, then calls [`Membership::buried`].
    pub free: Vec<WorkerId>,
    /// Whether gauges have larger values than this process wrote. After a hot restart Envoy
    /// periodically adds the gauges of its parent process to its own gauges of the same name. The
    /// filter can't detect this in any other way. Totals, shares and heads are then wrong, too.
    pub hot_restart: bool,
}

fn heartbeat_number(host: &impl Shared, id: WorkerId) -> Result<Number, HostError> {
    host.number(&format!("headgate.worker.{id}.heartbeat_ms"))
}

fn millis(now: Instant) -> u64 {
    // The result is never 0, because 0 means "never renewed".
    (now.as_nanos() / 1_000_000).max(1)
}

impl Membership {
    /// Claims a number. `nonce` identifies the VM. It may be any value but 0 that no other VM of
    /// the process uses.
    ///
    /// # Errors
    /// [`HostError`] when shared data can't be read or written, or all numbers are taken.
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

    /// Returns this VM's number.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Returns the number of times that this VM has joined. If the count has grown since a ledger
    /// was created, this VM has a new number, and the ledger's bookings are under the old one.
    pub fn joins(&self) -> u32 {
        self.joins
    }

    /// Returns the numbers of the other VMs, as of the last tick.
    pub fn others(&self) -> &[WorkerId] {
        &self.others
    }

    /// Returns the number of worker numbers that were ever given out in this process. These are the
    /// numbers from 0 up to but excluding the result.
    pub fn numbers(&self) -> u32 {
        self.numbers
    }

    fn look(&mut self, list: &[u64], host: &impl Shared) -> Result<(), HostError> {
        self.others = others(list, self.id);
        let ours = (list.len() as u32).max(self.id + 1);
        let known = host.get(self.all_numbers)?;
        if known < u64::from(ours) {
            // This write may overwrite a higher value that a VM of another list writes at the same
            // time. The next tick of that VM writes the higher value again.
            host.set(self.all_numbers, u64::from(ours))?;
        }
        self.numbers = ours.max(known.min(u64::from(MAX_WORKERS)) as u32);
        Ok(())
    }

    /// Whether this VM's lease may have expired. Nothing may then be booked under its number before
    /// the next [`Membership::tick`]. This check makes no host call.
    pub fn is_doubtful(&self, now: Instant) -> bool {
        now.since(self.renewed) > LEASE / 2
    }

    /// Renews this VM's heartbeat and checks the heartbeats of the other VMs. Between renewals, a
    /// call is cheap.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. Nothing is lost, and the next tick tries again.
    pub fn tick(&mut self, now: Instant, host: &impl Shared) -> Result<Changes, HostError> {
        let mut changes = Changes::default();
        if now.since(self.ticked) > LEASE / 4 {
            // This thread was suspended, and the other threads may have been suspended, too. Give
            // them the time of a lease to renew their heartbeats.
            self.judge_after = now + LEASE;
        }
        self.ticked = now;
        if now.since(self.renewed) < RENEW {
            return Ok(changes);
        }
        // Write before the list is read, so that either this VM or a VM that cleans it up sees the
        // other's write.
        host.set(self.heartbeat, millis(now))?;
        host.set(self.processes, 1)?;
        let list = entries(host)?;
        if list.get(self.id as usize) != Some(&self.nonce) {
            self.id = claim(now, self.nonce, host)?;
            self.joins += 1;
            self.heartbeat = heartbeat_number(host, self.id)?;
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

    /// Marks worker `other` for clean-up by this VM, if the worker died. Returns whether it has
    /// this VM's mark.
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
            // An earlier burial by this VM is unfinished.
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
        // Mark the number before it is freed, so that no VM can claim it while its share is still
        // booked. If this VM dies before it frees the number, another VM finds the mark of a dead
        // VM.
        if !stale(host.get(heartbeat)?) || !replace(other, entry, mark, host)? {
            return Ok(false);
        }
        if stale(host.get(heartbeat)?) {
            return Ok(true);
        }
        // The VM has resumed. If it has already seen the mark, it has another number by now, and
        // the lease of this number will expire.
        replace(other, mark, entry, host)?;
        Ok(false)
    }

    /// Marks worker `dead` for clean-up by this VM, regardless of its heartbeat. Returns false
    /// if `dead` has left, is being cleaned up, or is this VM.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The lease then expires instead.
    pub fn mark(&self, dead: WorkerId, host: &impl Shared) -> Result<bool, HostError> {
        let entry = entries(host)?.get(dead as usize).copied();
        match entry.unwrap_or_default() {
            0 => Ok(false),
            entry if entry & BURIAL != 0 || dead == self.id => Ok(false),
            entry => replace(dead, entry, self.nonce | BURIAL, host),
        }
    }

    /// Marks the next number that no VM of any list has, so that this worker can release its
    /// bookings. Returns the number, if any.
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
        // If the number belongs to another list, that list's VMs clean up its owner first.
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
    /// [`HostError`] if a host call fails. The number then keeps its mark, and a later tick of this
    /// VM reports it again.
    pub fn buried(&mut self, dead: WorkerId, host: &impl Shared) -> Result<(), HostError> {
        self.others.retain(|&other| other != dead);
        replace(dead, self.nonce | BURIAL, 0, host).map(drop)
    }

    /// Frees this VM's number. The caller must have given the VM's share back before.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The lease then expires instead.
    pub fn leave(self, host: &impl Shared) -> Result<(), HostError> {
        if replace(self.id, self.nonce, 0, host)? {
            // Clear the heartbeat, so that the number can be claimed before the lease expires.
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

/// Changes the list, and returns the result of `change`. If that result is `None`, the list stays
/// as it is.
fn update<T>(
    host: &impl Shared,
    mut change: impl FnMut(&mut Vec<u64>) -> Option<T>,
) -> Result<Option<T>, HostError> {
    // The list's format differs from that of other records, because workers of another version read
    // the list, too.
    shared::change_bytes(host, KEY, ATTEMPTS, |bytes| {
        let mut list = decode(bytes);
        let result = change(&mut list);
        if result.is_some() {
            *bytes = list.iter().flat_map(|nonce| nonce.to_le_bytes()).collect();
        }
        (result.is_some(), result)
    })
}

/// Claims the lowest number that no VM of any list has.
fn claim(now: Instant, nonce: u64, host: &impl Shared) -> Result<WorkerId, HostError> {
    let mark = nonce | BURIAL;
    let mut from: WorkerId = 0;
    while from < MAX_WORKERS {
        let claimed = update(host, |list| {
            let is_free = |id: &WorkerId| list.get(*id as usize).is_none_or(|&nonce| nonce == 0);
            let id = (from..MAX_WORKERS).find(is_free)?;
            list.resize(list.len().max(id as usize + 1), 0);
            // Mark the number until it has a heartbeat. The heartbeat of the number's last owner is
            // stale, so other VMs would clean up this VM at once.
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

/// Starts the heartbeat of worker `id`, unless a VM of another list has that number. Returns
/// whether the heartbeat was started. If two VMs try this at the same time, at most one succeeds,
/// because each adds before it reads. The other VM takes its addition back before the first
/// renewal.
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

/// Replaces the entry of `id` with `to` if the entry is still `from`. An entry beyond the list's
/// end counts as 0. Returns true to the one caller that replaced the entry.
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
