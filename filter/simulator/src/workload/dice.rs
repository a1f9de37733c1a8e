//! Random numbers from a seed.

use headgate_strategies::rng::Rng;
use rand::TryRng;

/// The engine's generator, with the interface that distributions need.
#[derive(Debug, Clone)]
pub(crate) struct Dice(pub(crate) Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    /// Returns a number drawn uniformly from 0 ≤ x < 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.next_f64()
    }

    /// Returns a seed for another generator.
    pub(crate) fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }
}

impl TryRng for Dice {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        // The upper half is as random as the lower half.
        Ok((self.0.next_u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.0.next_u64().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}
