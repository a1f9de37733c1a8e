//! Checks of class admission.

use std::ops::RangeInclusive;

use super::super::admission_law::{Method, SettingsError};
use super::super::bounds::within;
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
        if self.receives && stage.classes.len() < 2 {
            let problem = format!("with {} classes; 2 or more", stage.classes.len());
            return Err(ConfigError::new(format!("{at}.receives"), problem));
        }
        workflows::peers(&format!("{at}.peers"), &self.peers)
    }
}

impl ServiceAdmissionConfig {
    pub(super) fn check(&self, at: &str) -> Result<(), ConfigError> {
        check_classes(&self.classes, at)?;
        if self.targets_us.len() + 1 != self.classes.len() {
            let (targets, classes) = (self.targets_us.len(), self.classes.len());
            let problem = format!("{targets} for {classes} classes; one for each but the last");
            return Err(ConfigError::new(format!("{at}.targets_us"), problem));
        }
        if let Err(error) = self.settings().check() {
            return Err(ConfigError::new(at, error.to_string()));
        }
        match &self.central {
            Some(central) => central.check(&format!("{at}.central")),
            None => Ok(()),
        }
    }
}

impl CentralConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        let wrong =
            |field: &str, problem: String| Err(ConfigError::new(format!("{at}.{field}"), problem));
        if self.service.is_empty() || self.service.len() > MAX_NAME {
            let problem = format!("{:?}; namespace/name of the service", self.service);
            return wrong("service", problem);
        }
        within(format_args!("{at}.report_us"), self.report_us, REPORTS_US)?;
        match self.method {
            Method::Misses { period_us, .. } => {
                within(format_args!("{at}.method.period_us"), period_us, PERIODS_US)
            }
            Method::Incast { smoothing } if !(0.0..1.0).contains(&smoothing) => {
                wrong("method", SettingsError::Smoothing(smoothing).to_string())
            }
            Method::Incast { .. } => Ok(()),
        }
    }
}
