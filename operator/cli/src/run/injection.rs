//! The arguments of the webhook that injects Envoys into Pods.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use clap::{Args, Parser};
use tokio::sync::watch;

use super::listen::listen;
use headgate_controller::inject::Settings;
use headgate_controller::inject::webhook::Webhook;
use headgate_controller::kubernetes::ca_bundle::CaBundle;
use headgate_xds::tls::Trust;

/// Arguments about the webhook.
#[derive(Debug, Clone, Args)]
pub(crate) struct InjectionArgs {
    /// Address of the admission webhook /inject, which adds an Envoy to Pods as headgate inject
    /// does. It serves HTTPS with --tls-cert
    #[arg(long, value_name = "IP:PORT", requires_all = ["tls_cert", "kubernetes"])]
    pub(crate) injection: Option<SocketAddr>,
    /// MutatingWebhookConfiguration whose caBundle the operator sets to --client-ca, with which the
    /// API server verifies the operator
    #[arg(long, value_name = "NAME", requires = "injection")]
    pub(crate) injection_webhook: Option<String>,
    /// Option of headgate inject for Pods that the webhook injects, such as
    /// --inject-arg=--concurrency=4; may be repeated. If an option is given twice, the last value
    /// applies
    #[arg(
        long = "inject-arg",
        value_name = "ARG",
        requires = "injection",
        allow_hyphen_values = true
    )]
    pub(crate) inject_args: Vec<String>,
}

/// The options of `headgate inject` without files.
#[derive(Debug, Parser)]
#[command(
    name = "--inject-arg",
    args_override_self = true,
    no_binary_name = true
)]
struct Options {
    #[command(flatten)]
    settings: Settings,
}

impl InjectionArgs {
    /// Returns the webhook, which listens on its address, or `None` without such an address.
    ///
    /// # Errors
    /// Returns a message that names the argument at fault.
    pub(super) fn webhook(
        &self,
        trust: Option<watch::Receiver<Arc<Trust>>>,
    ) -> anyhow::Result<Option<Webhook>> {
        let (Some(address), Some(trust)) = (self.injection, trust) else {
            return Ok(None);
        };
        Ok(Some(Webhook {
            settings: settings(&self.inject_args)?,
            listener: listen("--injection", address)?,
            trust,
        }))
    }

    /// Returns the webhook configuration that gets the CA, and the source of the CA.
    pub(super) fn ca_bundle(&self, trust: Option<watch::Receiver<Arc<Trust>>>) -> Option<CaBundle> {
        let name = self.injection_webhook.clone()?;
        Some(CaBundle {
            name,
            trust: trust?,
        })
    }
}

/// Returns the settings of these options. The webhook would leave every Pod without Envoy if a
/// request were more than its limit.
fn settings(options: &[impl AsRef<OsStr>]) -> anyhow::Result<Settings> {
    let Options { settings } = Options::try_parse_from(options)?;
    let checked = settings.check_resources();
    checked.map_err(|why| anyhow!("--inject-arg: {why}"))?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_an_option_applies_and_an_unknown_one_is_refused() {
        let of_chart_and_user = settings(&["--image=chart", "--concurrency=4", "--image=user"]);
        let found = of_chart_and_user.unwrap();
        assert_eq!((found.image.as_str(), found.concurrency), ("user", 4));
        let unknown = settings(&["--image=chart", "--proxy-cpus=1"]).unwrap_err();
        assert!(unknown.to_string().contains("--proxy-cpus"), "{unknown}");
        for taken in ["--listen-port=9901", "--listen-port=9902"] {
            let error = settings(&["--image=chart", taken]).unwrap_err().to_string();
            assert!(error.contains("Envoy needs this port"), "{error}");
        }
        let large = settings(&["--image=chart", "--proxy-memory-request=1Gi"]).unwrap_err();
        let expected = "--inject-arg: --proxy-memory-request 1Gi is more than --proxy-memory-limit";
        assert!(large.to_string().starts_with(expected), "{large}");
    }
}
