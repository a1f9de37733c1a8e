//! Checks of class admission.

use std::ops::RangeInclusive;

use super::super::admission_law::{Method, check_smoothing};
use super::super::bounds::{ensure, within};
use super::super::{
    CentralConfig, ClassAdmissionConfig, ConfigError, ServiceAdmissionConfig, StageConfig,
};
use super::{check_classes, workflows};

/// Longest name of a service, bytes.
const MAX_NAME: usize = 512;
const REPORTS_US: RangeInclusive<u64> = 10_000..=10_000_000;
const PERIODS_US: RangeInclusive<u64> = 10_000..=60_000_000;

impl ClassAdmissionConfig {
    pub(super) fn check(&self, stage: &StageConfig, at: &str) -> Result<(), ConfigError> {
        let classes = stage.classes.len();
        let is_right = !self.receives || classes >= 2;
        ensure(is_right, format_args!("{at}.receives"), || {
            format!("with {classes} classes; 2 or more")
        })?;
        workflows::peers(&format!("{at}.peers"), &self.peers)
    }
}

impl ServiceAdmissionConfig {
    pub(super) fn check(&self, at: &str) -> Result<(), ConfigError> {
        check_classes(&self.classes, at)?;
        let (targets, classes) = (self.targets_us.len(), self.classes.len());
        ensure(
            targets + 1 == classes,
            format_args!("{at}.targets_us"),
            || format!("{targets} for {classes} classes; one for each but the last"),
        )?;
        let checked = self.settings().check();
        checked.map_err(|error| ConfigError::new(at, error.to_string()))?;
        match &self.central {
            Some(central) => central.check(&format!("{at}.central")),
            None => Ok(()),
        }
    }
}

impl CentralConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        let service = &self.service;
        let is_right = (1..=MAX_NAME).contains(&service.len());
        ensure(is_right, format_args!("{at}.service"), || {
            format!("{service:?}; namespace/name of the service")
        })?;
        within(format_args!("{at}.report_us"), self.report_us, REPORTS_US)?;
        match self.method {
            Method::Misses { period_us, .. } => {
                within(format_args!("{at}.method.period_us"), period_us, PERIODS_US)
            }
            Method::Incast { smoothing } => check_smoothing(smoothing)
                .map_err(|error| ConfigError::new(format!("{at}.method"), error.to_string())),
        }
    }
}
