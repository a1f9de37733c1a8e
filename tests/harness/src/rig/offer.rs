//! Single requests and Headgate's decisions about them, for tests of decisions.

use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Result, ensure};

use super::Rig;
use crate::http::{Answer, Pending};
use crate::rig::Waiter;
use crate::wait;

/// The decision about a request at its arrival.
#[derive(Debug)]
pub enum Offered {
    /// The request waits or is served.
    Admitted(Pending),
    /// The request was refused.
    Refused(Answer),
}

impl Rig {
    /// Sends a request and waits for Headgate's decision about it. No other request may arrive
    /// before the decision.
    ///
    /// # Errors
    /// If no decision is observed.
    pub fn offer(&self, request: &Waiter) -> Result<Offered> {
        // The sum counts the requests that have reached the backend, and those in the queue.
        // Earlier requests are already counted, and no request leaves the queue.
        let admitted = || -> Result<u64> {
            Ok(self.backend.stats().received + self.policy_stat("queue_length")?)
        };
        let before = admitted()?;
        let headers: Vec<(&str, &str)> = request
            .headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let pending = self.request(request.path, &headers)?;
        let refused = wait::until("a decision", || {
            // The order of the two calls matters, because an answer by the backend must not count
            // as a refusal.
            match (pending.has_answer(), admitted()) {
                (_, Ok(now)) if now > before => Ok(false),
                (Ok(true), Ok(_)) => Ok(true),
                (Ok(false), Ok(_)) => Err("neither admitted nor answered".to_owned()),
                (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
            }
        })?;
        if !refused {
            return Ok(Offered::Admitted(pending));
        }
        let answer = pending.answer()?;
        ensure!(answer.status >= 400, "refused, but answered {answer:?}");
        Ok(Offered::Refused(answer))
    }

    /// Sends a request that is expected to be admitted, and leaves it in the system.
    ///
    /// # Errors
    /// If the request is refused.
    pub fn admit(&self, request: &Waiter) -> Result<Pending> {
        match self.offer(request)? {
            Offered::Admitted(pending) => Ok(pending),
            Offered::Refused(answer) => anyhow::bail!("{request:?} was refused: {answer:?}"),
        }
    }

    /// Sends a request while all slots are in use, and removes it from the queue again if it was
    /// admitted. Returns the reason if it was refused.
    ///
    /// # Errors
    /// If no decision is observed.
    pub fn try_queue(&self, request: &Waiter) -> Result<Option<String>> {
        let queued = self.policy_stat("queue_length")?;
        let reason = match self.offer(request)? {
            Offered::Admitted(pending) => {
                self.wait_for_stat("queue_length", queued + 1)?;
                pending.hang_up();
                self.wait_for_stat("queue_length", queued)?;
                None
            }
            Offered::Refused(answer) => {
                Some(answer.refusal_reason().unwrap_or("not given").to_owned())
            }
        };
        Ok(reason)
    }

    /// Calls [`try_queue`](Self::try_queue) on each of the two workers until their decisions agree.
    /// They agree once the workers have exchanged their measurements.
    ///
    /// # Errors
    /// If the decisions don't agree in time, or no decision is observed.
    pub fn try_queue_on_both(&self, request: &Waiter) -> Result<Option<String>> {
        wait::until("two workers that agree", || {
            match self.try_queue_on_each(request) {
                Ok([one, other]) if one == other => Ok(Ok(one)),
                Ok([one, other]) => Err(format!(
                    "{request:?} is refused with {one:?} by one worker, with {other:?} by the other"
                )),
                Err(error) => Ok(Err(error)),
            }
        })?
    }

    fn try_queue_on_each(&self, request: &Waiter) -> Result<[Option<String>; 2]> {
        let mut idle = self.even_connections()?;
        let one = self.try_queue(request)?;
        self.turn_to_the_other(&mut idle)?;
        let other = self.try_queue(request)?;
        Ok([one, other])
    }

    /// Sends a request to one of the two workers, and to the other one if the first one refuses it.
    /// So a refusal is the decision of both workers. Workers can have different measurements, for
    /// example if one started later.
    ///
    /// # Errors
    /// If no decision is observed.
    pub fn offer_to_either(&self, request: &Waiter) -> Result<Offered> {
        let mut idle = self.even_connections()?;
        match self.offer(request)? {
            Offered::Refused(_) => {
                self.turn_to_the_other(&mut idle)?;
                self.offer(request)
            }
            admitted @ Offered::Admitted(_) => Ok(admitted),
        }
    }

    /// Opens idle connections until both workers have equal numbers of connections. A new
    /// connection goes to the worker with fewer connections, and with equal numbers always to the
    /// same worker. So after one more idle connection, the next connection goes to the other
    /// worker.
    fn even_connections(&self) -> Result<Vec<IdleConnection>> {
        let mut idle = Vec::new();
        while let [first, second] = self.connections_by_worker()?[..]
            && first != second
        {
            idle.push(self.idle_connection()?);
        }
        Ok(idle)
    }

    /// Makes the next connection go to the other worker.
    fn turn_to_the_other(&self, idle: &mut Vec<IdleConnection>) -> Result<()> {
        self.connections_by_worker()?;
        idle.push(self.idle_connection()?);
        self.connections_by_worker()?;
        Ok(())
    }

    /// Opens a connection that stays idle.
    fn idle_connection(&self) -> Result<IdleConnection> {
        Ok(IdleConnection {
            _stream: TcpStream::connect(self.addr())?,
            _counted: Arc::clone(&self.clients),
        })
    }

    /// Returns the number of connections of each worker, once Envoy has noticed all connections
    /// that the rig has opened and closed. Envoy decrements its count a moment after it has removed
    /// the request from the queue or answered it.
    ///
    /// # Errors
    /// If Envoy's count stays different, because of a load generator, or of a request that Envoy
    /// gave up.
    pub fn connections_by_worker(&self) -> Result<Vec<u64>> {
        let expected = Arc::strong_count(&self.clients) as u64 - 1;
        wait::until(&format!("{expected} connections"), || {
            match self.envoy.connections_by_worker() {
                Ok(now) if now.iter().sum::<u64>() == expected => Ok(now),
                Ok(now) => Err(format!("{now:?} by worker")),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}

struct IdleConnection {
    _stream: TcpStream,
    // This field is dropped after `_stream`, so the strong count of the `Arc` includes every open
    // connection.
    _counted: Arc<()>,
}
