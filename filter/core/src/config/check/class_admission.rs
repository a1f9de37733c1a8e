//! Checks of class admission.

use super::super::{ClassAdmissionConfig, ConfigError, ServiceAdmissionConfig, StageConfig};
use super::{check_classes, workflows};

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
        match self.law() {
            Ok(_) => Ok(()),
            Err(error) => Err(ConfigError::new(at, error.to_string())),
        }
    }
}
