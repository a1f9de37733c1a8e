//! The shared numbers behind decisions: slots in use and queued work of one stage, over all workers
//! of the process.
//!
//! Decisions read two atomic gauges of the host per stage: the slots in use, and the queue. The
//! queue's length and work share one gauge (length in the upper 20 bits, work in the lower 44).
//! They change together and are read together, so one gauge saves host calls. In addition, every
//! worker keeps its own share of both gauges, so that a dead worker's share can be given back
//! ([`Ledger::give_back`]).
//!
//! **Never above P.** [`Ledger::try_acquire`] first adds one and then reads. A worker that reads a
//! total of at most P owns a slot. Any other worker subtracts one again. Every owner's addition
//! precedes its own read, so the last owner to add has seen the additions of all other owners.
//! Hence there are never more than P owners. Two workers that add at the same moment for the last
//! slot may both step back. Each then checks whether a slot is free, and tries again.
//!
//! **No slot idles beside a waiter.** A waiter announces itself before it looks for a free slot. A
//! worker that releases a slot frees it before it looks for waiters. So at least one of the two
//! sees the other.
//!
//! **Tokens.** With a budget of tokens, a request takes tokens together with its slot. The tokens
//! are in a third gauge, with the same rule of adding first and reading afterwards. A worker also
//! checks beforehand whether the tokens fit, because an addition that is taken back hides room from
//! another worker until its next tick. Without a budget this gauge doesn't exist.

use std::ops::{Add, Neg};

use headgate_strategies::host::{HostError, Number, Shared};
use headgate_strategies::time::Instant;
use headgate_strategies::work::MAX_WORK;

use crate::workers::WorkerId;

/// The number of bits of the queue gauge that hold the work.
const WORK_BITS: u32 = 44;
/// The work of a queue above which no more work is added. In µs it is 101 days. Even if each of
/// [`crate::workers::MAX_WORKERS`] workers reads the queue before the others add their work, the
/// sum fits into [`WORK_BITS`].
const FULL: u64 = 1 << (WORK_BITS - 1);
const _: () = assert!(FULL + MAX_WORK * crate::workers::MAX_WORKERS as u64 <= 1 << WORK_BITS);

/// The smallest stored length that represents a negative length. If an audit corrects too much, the
/// length is negative until the next audit.
const NEGATIVE: u32 = (1 << 20) - (1 << 14);
const _: () = assert!(crate::config::MAX_QUEUE_LENGTH < NEGATIVE);

/// The number of attempts to take a slot that is free but that other workers also try to take.
const ATTEMPTS: u32 = 8;

/// The state of the queue over all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueState {
    /// The number of requests.
    pub length: u32,
    /// The sum of the requests' work, estimated when they were enqueued, in the unit of
    /// [`headgate_strategies::work`]. It is the sum in Bouncer's Eq. 2 and in Chronos' Eq. 2.
    pub work: u64,
}

impl QueueState {
    /// Returns the work that one more request may add.
    pub fn room(&self) -> u64 {
        FULL.saturating_sub(self.work).min(MAX_WORK)
    }

    fn unpack(gauge: u64) -> Self {
        // The cast loses nothing, because a shift by 44 leaves 20 bits.
        let length = (gauge >> WORK_BITS) as u32;
        if length >= NEGATIVE {
            return Self::default();
        }
        Self {
            length,
            work: gauge & ((1 << WORK_BITS) - 1),
        }
    }
}

/// The tokens that a request takes with its slot. The default is no tokens and no budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tokens {
    /// The request's tokens, at most the budget.
    pub taken: u32,
    /// The budget of all requests.
    pub budget: u32,
}

/// Amounts that a worker has booked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// The number of slots.
    pub slots: i64,
    /// The number of tokens.
    pub tokens: i64,
    /// The number of queued requests.
    pub queued: i64,
    /// The work of the queued requests, in the unit of [`QueueState::work`].
    pub work: i64,
}

impl Share {
    /// Returns queue length and work as one number, which can be added to the gauge.
    fn queue(self) -> i64 {
        (self.queued << WORK_BITS) + self.work
    }

    fn unpack(slots: u64, tokens: u64, queue: u64) -> Self {
        let length = (queue >> WORK_BITS).cast_signed();
        let negative = length >= i64::from(NEGATIVE);
        Self {
            slots: slots.cast_signed(),
            tokens: tokens.cast_signed(),
            queued: if negative { length - (1 << 20) } else { length },
            work: (queue & ((1 << WORK_BITS) - 1)).cast_signed(),
        }
    }
}

impl Add for Share {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            slots: self.slots + other.slots,
            tokens: self.tokens + other.tokens,
            queued: self.queued + other.queued,
            work: self.work + other.work,
        }
    }
}

impl Neg for Share {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            slots: -self.slots,
            tokens: -self.tokens,
            queued: -self.queued,
            work: -self.work,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Gauges {
    slots: Number,
    /// The gauge of tokens, or `None` if no budget of tokens was ever configured.
    tokens: Option<Number>,
    queue: Number,
}

impl Gauges {
    fn define(host: &impl Shared, prefix: &str, tokens: bool) -> Result<Self, HostError> {
        let gauge = |name: &str| host.number(&format!("{prefix}.{name}"));
        Ok(Self {
            slots: gauge("slots_in_use")?,
            tokens: tokens.then(|| gauge("tokens_in_use")).transpose()?,
            queue: gauge("queue_packed")?,
        })
    }

    fn book(&self, host: &impl Shared, share: Share) -> Result<(), HostError> {
        if share.slots != 0 {
            host.add_to(self.slots, share.slots)?;
        }
        if let Some(tokens) = self.tokens.filter(|_| share.tokens != 0) {
            host.add_to(tokens, share.tokens)?;
        }
        match share.queue() {
            0 => Ok(()),
            queue => host.add_to(self.queue, queue),
        }
    }

    /// Writes those parts of `booked` that are not 0 in `changed`. These gauges have only one
    /// writer, so if a write fails, the next write repairs the gauge.
    fn set(&self, host: &impl Shared, booked: Share, changed: Share) -> Result<(), HostError> {
        if changed.slots != 0 {
            host.set(self.slots, booked.slots.cast_unsigned())?;
        }
        if let Some(tokens) = self.tokens.filter(|_| changed.tokens != 0) {
            host.set(tokens, booked.tokens.cast_unsigned())?;
        }
        match changed.queue() {
            0 => Ok(()),
            _ => host.set(self.queue, booked.queue().cast_unsigned()),
        }
    }

    fn read(&self, host: &impl Shared) -> Result<Share, HostError> {
        let tokens = self.tokens.map_or(Ok(0), |tokens| host.get(tokens))?;
        Ok(Share::unpack(
            host.get(self.slots)?,
            tokens,
            host.get(self.queue)?,
        ))
    }
}

#[derive(Debug, Clone, Copy)]
struct WorkerGauges {
    share: Gauges,
    head: Number,
    woken_at: Number,
}

/// One worker's access to a stage's shared numbers.
#[derive(Debug)]
pub struct Ledger {
    prefix: String,
    total: Gauges,
    /// The gauges by worker number, which are defined when first needed.
    workers: Vec<Option<WorkerGauges>>,
    own_id: WorkerId,
    own: WorkerGauges,
    /// This worker's bookings.
    booked: Share,
}

impl Ledger {
    /// Returns the ledger of the stage whose stats start with `prefix`.
    ///
    /// # Errors
    /// [`HostError`] when a gauge can't be defined.
    pub fn new(host: &impl Shared, prefix: &str, own_id: WorkerId) -> Result<Self, HostError> {
        let mut this = Self {
            prefix: prefix.to_owned(),
            total: Gauges::define(host, prefix, false)?,
            workers: Vec::new(),
            own_id,
            own: define_worker(host, prefix, own_id, false)?,
            booked: Share::default(),
        };
        this.workers.resize(own_id as usize + 1, None);
        this.workers[own_id as usize] = Some(this.own);
        // The number may have belonged to a dead worker. The dead worker's share is still booked
        // here if the worker that cleaned it up did not have this stage.
        this.give_back(host, own_id)?;
        Ok(this)
    }

    /// Begins to count tokens, unless they are counted already.
    ///
    /// # Errors
    /// [`HostError`] when a gauge can't be defined.
    pub fn count_tokens(&mut self, host: &impl Shared) -> Result<(), HostError> {
        if self.total.tokens.is_some() {
            return Ok(());
        }
        let total = Gauges::define(host, &self.prefix, true)?;
        self.own = define_worker(host, &self.prefix, self.own_id, true)?;
        self.total = total;
        self.workers.fill(None);
        self.workers[self.own_id as usize] = Some(self.own);
        // These tokens are left from the last owner of the worker number, or from bookings of this
        // worker under another number.
        let left = tokens_of(-self.own.share.read(host)?.tokens);
        self.own.share.book(host, left)?;
        self.total.book(host, left)
    }

    fn worker(&mut self, host: &impl Shared, id: WorkerId) -> Result<WorkerGauges, HostError> {
        let at = id as usize;
        if at >= self.workers.len() {
            self.workers.resize(at + 1, None);
        }
        if let Some(known) = self.workers[at] {
            return Ok(known);
        }
        let defined = define_worker(host, &self.prefix, id, self.total.tokens.is_some())?;
        self.workers[at] = Some(defined);
        Ok(defined)
    }

    fn book(&mut self, host: &impl Shared, share: Share) -> Result<(), HostError> {
        self.booked = self.booked + share;
        // If the VM dies between the two writes, the total is too high, and a slot idles until the
        // drift is corrected. The total must never be too low, because then more than P requests
        // would be in the backend. The next booking repairs a share that could not be written. The
        // audits repair a total that could not be lowered within a few seconds.
        if share.slots + share.queued > 0 || share.tokens > 0 {
            if let Err(error) = self.total.book(host, share) {
                self.booked = self.booked + -share;
                return Err(error);
            }
            self.own.share.set(host, self.booked, share).or(Ok(()))
        } else {
            let written = self.own.share.set(host, self.booked, share);
            self.total.book(host, share).and(written)
        }
    }

    /// Returns the number of slots in use, over all workers.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn slots_in_use(&self, host: &impl Shared) -> Result<i64, HostError> {
        host.get(self.total.slots).map(u64::cast_signed)
    }

    /// Returns the number of tokens in use, over all workers, or 0 if tokens aren't counted.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn tokens_in_use(&self, host: &impl Shared) -> Result<i64, HostError> {
        let tokens = self.total.tokens.map_or(Ok(0), |tokens| host.get(tokens))?;
        Ok(tokens.cast_signed())
    }

    /// Whether these tokens fit into the budget together with the tokens in use.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn fits(&self, host: &impl Shared, tokens: Tokens) -> Result<bool, HostError> {
        self.are_within(host, i64::from(tokens.taken), tokens)
    }

    /// Whether `more` tokens, together with those in use, are within the budget. If the request
    /// takes no tokens, there is no host call.
    fn are_within(&self, host: &impl Shared, more: i64, of: Tokens) -> Result<bool, HostError> {
        Ok(of.taken == 0 || self.tokens_in_use(host)? + more <= i64::from(of.budget))
    }

    /// Returns the queue's state, over all workers.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn queue(&self, host: &impl Shared) -> Result<QueueState, HostError> {
        host.get(self.total.queue).map(QueueState::unpack)
    }

    /// Returns this worker's bookings.
    pub fn booked(&self) -> Share {
        self.booked
    }

    /// Takes a slot and `tokens` if fewer than `limit` slots are in use and the tokens fit.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. Nothing is taken then.
    pub fn try_acquire(
        &mut self,
        host: &impl Shared,
        limit: u32,
        tokens: Tokens,
    ) -> Result<bool, HostError> {
        let limit = i64::from(limit);
        for _ in 0..ATTEMPTS {
            if !self.fits(host, tokens)? {
                break;
            }
            self.acquire_over_limit(host, tokens.taken)?;
            let in_use = self.slots_in_use(host);
            let fits = self.are_within(host, 0, tokens);
            if matches!((&in_use, &fits), (Ok(n), Ok(true)) if *n <= limit) {
                return Ok(true);
            }
            self.release(host, tokens.taken)?;
            in_use.and(fits)?;
            if self.slots_in_use(host)? >= limit {
                break;
            }
        }
        Ok(false)
    }

    /// Takes a slot and `tokens` without a limit, for requests that are never held.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn acquire_over_limit(&mut self, host: &impl Shared, tokens: u32) -> Result<(), HostError> {
        self.book(host, running(tokens))
    }

    /// Takes `tokens` for a request that has a slot, whether they fit into the budget or not.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. No tokens are taken then.
    pub fn take_more(&mut self, host: &impl Shared, tokens: u32) -> Result<(), HostError> {
        self.book(host, tokens_of(tokens.into()))
    }

    /// Gives a slot back, with the `tokens` that were taken with it.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn release(&mut self, host: &impl Shared, tokens: u32) -> Result<(), HostError> {
        self.book(host, -running(tokens))
    }

    /// Announces a queued request of `work` (0..=[`MAX_WORK`]), after [`Ledger::publish_head`].
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn enqueue(&mut self, host: &impl Shared, work: i64) -> Result<(), HostError> {
        self.book(host, waiting(1, work))
    }

    /// Removes a request that [`Ledger::enqueue`] announced.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn dequeue(&mut self, host: &impl Shared, work: i64) -> Result<(), HostError> {
        self.book(host, -waiting(1, work))
    }

    /// Adds `more` to the announced work of a queued request.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The audit then corrects the total.
    pub fn recount(&mut self, host: &impl Shared, more: i64) -> Result<(), HostError> {
        self.book(host, waiting(0, more))
    }

    /// Publishes the rank of this worker's first waiter, or `None` without a waiter.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn publish_head(&self, host: &impl Shared, rank: Option<u64>) -> Result<(), HostError> {
        // The gauge's initial value is 0, so 0 means that no request waits.
        host.set(self.own.head, rank.map_or(0, |rank| rank.saturating_add(1)))
    }

    /// Returns the rank of worker `id`'s first waiter, or `None` without a waiter.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn head_of(&mut self, host: &impl Shared, id: WorkerId) -> Result<Option<u64>, HostError> {
        let head = self.worker(host, id)?.head;
        Ok(host.get(head)?.checked_sub(1))
    }

    /// Returns the time at which worker `id` was woken, if it has not reacted since. Returns `None`
    /// if no wake-up is pending.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn woken_at(
        &mut self,
        host: &impl Shared,
        id: WorkerId,
    ) -> Result<Option<Instant>, HostError> {
        let woken_at = host.get(self.worker(host, id)?.woken_at)?;
        Ok((woken_at != 0).then(|| Instant::from_nanos(woken_at)))
    }

    /// Records that worker `id` is being woken.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn note_wake(
        &mut self,
        host: &impl Shared,
        id: WorkerId,
        now: Instant,
    ) -> Result<(), HostError> {
        host.set(self.worker(host, id)?.woken_at, now.as_nanos())
    }

    /// Clears this worker's wake-up, and returns the time at which the wake-up was sent. Returns
    /// `None` if no wake-up was pending.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn answer_wake(&self, host: &impl Shared) -> Result<Option<Instant>, HostError> {
        let woken_at = host.get(self.own.woken_at)?;
        if woken_at == 0 {
            return Ok(None);
        }
        host.set(self.own.woken_at, 0)?;
        Ok(Some(Instant::from_nanos(woken_at)))
    }

    /// Releases all bookings of worker `dead`, and returns them.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn give_back(&mut self, host: &impl Shared, dead: WorkerId) -> Result<Share, HostError> {
        let gauges = self.worker(host, dead)?;
        let share = gauges.share.read(host)?;
        host.set(gauges.head, 0)?;
        host.set(gauges.woken_at, 0)?;
        gauges.share.book(host, -share)?;
        self.total.book(host, -share)?;
        Ok(share)
    }

    /// Books this worker's share again, under its new number `own_id`. The share under the old
    /// number was given back when the lease ran out.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn rejoin(&mut self, host: &impl Shared, own_id: WorkerId) -> Result<(), HostError> {
        let new = self.worker(host, own_id)?;
        let old = std::mem::replace(&mut self.own, new);
        self.own_id = own_id;
        // Clear the old number's head, so that a worker which still reads the old number doesn't
        // defer to a waiter there.
        host.set(old.head, 0)?;
        // Release bookings that this worker made under the number after losing it, or that the
        // number's last owner left.
        self.give_back(host, own_id)?;
        self.own.share.set(host, self.booked, self.booked)?;
        self.total.book(host, self.booked)
    }

    /// Returns the difference between the total and the sum of the shares of workers 0 up to
    /// `numbers`. The difference is zero except while a worker is between its two writes of a
    /// booking, and after a VM died between them. A free number's share counts, too, because its
    /// bookings are given back by the worker that claims or sweeps the number.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn drift(&mut self, host: &impl Shared, numbers: u32) -> Result<Share, HostError> {
        let total = self.total.read(host)?;
        let mut drift = total + -self.booked;
        let own = self.own_id;
        for other in (0..numbers).filter(|id| *id != own) {
            drift = drift + -self.worker(host, other)?.share.read(host)?;
        }
        Ok(drift)
    }

    /// Subtracts a lasting `drift` from the totals.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn correct(&self, host: &impl Shared, drift: Share) -> Result<(), HostError> {
        self.total.book(host, -drift)
    }
}

/// Returns the share of a request that holds a slot and these tokens.
fn running(tokens: u32) -> Share {
    Share {
        slots: 1,
        ..tokens_of(tokens.into())
    }
}

fn tokens_of(tokens: i64) -> Share {
    Share {
        tokens,
        ..Share::default()
    }
}

/// Returns the share of this many waiting requests with this work.
fn waiting(queued: i64, work: i64) -> Share {
    Share {
        queued,
        work,
        ..Share::default()
    }
}

fn define_worker(
    host: &impl Shared,
    prefix: &str,
    id: WorkerId,
    tokens: bool,
) -> Result<WorkerGauges, HostError> {
    let prefix = format!("{prefix}.worker.{id}");
    Ok(WorkerGauges {
        share: Gauges::define(host, &prefix, tokens)?,
        head: host.number(&format!("{prefix}.head_rank"))?,
        woken_at: host.number(&format!("{prefix}.woken_at_ns"))?,
    })
}

#[cfg(test)]
mod tests;
