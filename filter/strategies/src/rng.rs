//! Seeded random numbers, and a hash. The same seed gives the same decisions in Envoy, the
//! simulator and tests.
//!
//! The generator is SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
//! Generators", OOPSLA 2014). It needs one addition and two multiplications for each number, and 8
//! bytes of state. Any seed is good, so workers may use 0, 1, 2 …. The generator passes `BigCrush`.
//! It is not suitable for secrets, but this crate needs none.

/// Returns the FNV-1a hash of `bytes`, which is the same in all workers and versions.
pub fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// A generator of random numbers. A clone repeats the same sequence.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Creates a generator whose numbers depend only on `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns a uniformly distributed 64-bit number.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniformly distributed number, 0 ≤ x < 1, in steps of 2⁻⁵³.
    pub fn next_f64(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 * STEP
    }

    /// Returns true with probability `p`. The result is always true for 1 and above, and always
    /// false for 0 and below.
    pub fn chance(&mut self, p: f64) -> bool {
        self.next_f64() < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_published_sequence() {
        // These are the first outputs of the reference implementation for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        let drawn: Vec<u64> = (0..5).map(|_| rng.next_u64()).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
    }

    #[test]
    fn is_uniform_on_the_unit_interval() {
        for seed in 0..8 {
            let mut rng = Rng::new(seed);
            let mut deciles = [0_u32; 10];
            for _ in 0..100_000 {
                let x = rng.next_f64();
                assert!((0.0..1.0).contains(&x));
                deciles[(x * 10.0) as usize] += 1;
            }
            // The standard deviation of a decile's count is 95.
            assert!(
                deciles.iter().all(|d| d.abs_diff(10_000) < 500),
                "{deciles:?}"
            );
        }
    }

    #[test]
    fn chance_keeps_its_promise_at_the_ends() {
        let mut rng = Rng::new(1);
        for _ in 0..1_000 {
            assert!(rng.chance(1.0));
            assert!(!rng.chance(0.0));
            assert!(!rng.chance(f64::NAN));
        }
    }
}
