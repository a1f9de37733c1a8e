//! The arguments of the webhook that injects Envoys into Pods.

use std::net::SocketAddr;
use std::sync::Arc;

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
        let Options { settings } = Options::try_parse_from(&self.inject_args)?;
        Ok(Some(Webhook {
            listener: listen("--injection", address)?,
            settings,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &[&str]) -> Result<Settings, clap::Error> {
        let Options { settings } = Options::try_parse_from(options)?;
        Ok(settings)
    }

    #[test]
    fn the_last_of_an_option_applies_and_an_unknown_one_is_refused() {
        let of_chart_and_user = settings(&["--image=chart", "--concurrency=4", "--image=user"]);
        let found = of_chart_and_user.unwrap();
        assert_eq!((found.image.as_str(), found.concurrency), ("user", 4));
        let unknown = settings(&["--image=chart", "--proxy-cpus=1"]).unwrap_err();
        assert!(unknown.to_string().contains("--proxy-cpus"), "{unknown}");
    }
}
