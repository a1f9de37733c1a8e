//! Runs the server of class admission. With policies from a folder, the server always listens. In a
//! cluster, the server listens only while this replica leads.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::{info, warn};

use super::listen::listen;
use headgate_controller::kubernetes::leader::Leadership;
use headgate_xds::AdmissionServer;

/// The pause before another attempt at an address that is in use.
const RETRY: Duration = Duration::from_secs(1);

/// Serves on the address of `listener` until `stop` holds `true`. In a cluster, serves only while
/// this replica leads.
pub(super) async fn serve(
    listener: TcpListener,
    server: AdmissionServer,
    leadership: Option<Leadership>,
    mut stop: watch::Receiver<bool>,
) {
    let Ok(address) = listener.local_addr() else {
        return;
    };
    // An error means that the sender was dropped, which also ends the server.
    let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
    let Some(mut leadership) = leadership else {
        return server.serve(listener, stopped).await;
    };
    // The listener is closed, so that a replica that doesn't lead refuses connections instead of
    // leaving them pending.
    drop(listener);
    let following = async {
        loop {
            if leadership.wait_for(Option::is_some).await.is_err() {
                return;
            }
            let listener = match listen("--admission", address) {
                Ok(listener) => listener,
                Err(error) => {
                    warn!("{error}");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            info!("class admission is served at {address}, because this replica leads");
            let lost = async { drop(leadership.wait_for(Option::is_none).await) };
            server.serve(listener, lost).await;
        }
    };
    tokio::select! {
        () = following => {}
        () = stopped => {}
    }
}
