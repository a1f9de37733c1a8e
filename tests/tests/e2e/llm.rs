//! Tests the Envoy configuration of the documentation page about LLM servers.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headgate_tests::backend::{BackendConfig, Fault, FaultKind};
use headgate_tests::bootstrap::Bootstrap;
use headgate_tests::docs;
use headgate_tests::http;
use headgate_tests::policy;
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

/// Returns the page's block of YAML whose first line begins with `first`.
fn block(first: &str) -> Result<Value> {
    let page = std::fs::read_to_string(docs::folder().join("tasks/llm.md"))?;
    let (blocks, _) = docs::blocks(&page);
    let block = blocks.iter().find(|b| b.text.starts_with(first));
    let block = block.with_context(|| format!("no block with {first}"))?;
    Ok(serde_saphyr::from_str(&block.text)?)
}

fn configure(bootstrap: &mut Bootstrap) -> Result<()> {
    let filters = block("- name:")?;
    for filter in filters.as_array().into_iter().flatten().rev() {
        bootstrap.prepend_filter(filter.clone())?;
    }
    let replies = block("local_reply_config:")?;
    bootstrap.manager()?["local_reply_config"] = replies["local_reply_config"].clone();
    Ok(())
}

/// Returns a rig with one slot, one place in the queue, and the configuration of Envoy from the
/// page. The third request is refused, and the refusal names the type of the request.
fn rig() -> Result<Rig> {
    let mut policy = policy::queue_only(1, 1);
    policy["spec"]["types"] = json!([
        {"name": "chat", "matches": [{"headers": [{"name": "x-gateway-model-name", "value": "chat"}]}]},
        {"name": "default"},
    ]);
    let backend = BackendConfig::constant(1_000, Duration::from_millis(1));
    let rig = Rig::builder(backend, policy);
    rig.change(configure).start()
}

#[test]
fn models_are_types_and_refusals_are_errors_of_openai() -> Result<()> {
    let rig = rig()?;
    let held = rig.occupy("/held", 1)?;
    let waiting = rig.enqueue("/waiting", 1)?;
    let said = |body, expected: &str| -> Result<()> {
        let json = [
            ("content-type", "application/json"),
            // The client's header must not replace the model that the body names.
            ("x-gateway-model-name", "chat"),
        ];
        let answer = http::send(rig.addr(), "POST", PATH, &json, Some(body))?.answer()?;
        ensure!(answer.status == 429, "{answer:?}");
        ensure!(answer.header("retry-after").is_some(), "{answer:?}");
        let refused = answer.header("x-headgate-refused").unwrap_or_default();
        ensure!(
            refused.contains(&format!("type={expected};")),
            "{body}: {refused}"
        );
        ensure!(answer.header("content-type") == Some("application/json"));
        let error: Value = serde_json::from_str(&answer.body)?;
        let error = &error["error"];
        ensure!(error["code"] == "headgate_refused{queue_full}", "{error}");
        ensure!(error["type"] == "server_error" && error["param"].is_null());
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains("queue is full"), "{error}");
        Ok(())
    };
    said(r#"{"model":"chat","messages":[]}"#, "chat")?;
    said(r#"{"model":"rag"}"#, "default")?;
    said(r#"{"messages":[]}"#, "default")?;
    said("no JSON", "default")?;
    drop((held, waiting));
    // Responses of the server pass unchanged.
    until("an answer of the server", || match rig.get("/") {
        Ok(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

/// The maximum of output tokens in a body, under either of its two field names, determines the
/// tokens that a request takes.
#[test]
fn the_most_output_of_a_body_takes_tokens() -> Result<()> {
    let mut policy = policy::queue_only(8, 10);
    policy["spec"]["parallelism"]["tokens"] = json!({
        "budget": 1_000,
        "output": {"header": "x-max-tokens", "otherwise": 7},
    });
    let backend = BackendConfig::constant(1_000, Duration::from_millis(1));
    let rig = Rig::builder(backend, policy);
    let rig = rig.change(configure).start()?;
    for (body, tokens) in [
        (r#"{"model":"chat","max_tokens":300}"#, 300),
        (r#"{"max_completion_tokens":20}"#, 20),
        (r#"{"model":"chat"}"#, 7),
    ] {
        rig.backend.inject(Fault::new(FaultKind::Hang, PATH, 1));
        // The client's header must not replace the number that the body states.
        let headers = [("content-type", "application/json"), ("x-max-tokens", "1")];
        let request = http::send(rig.addr(), "POST", PATH, &headers, Some(body))?;
        rig.wait_for_stat("tokens_in_use", tokens)?;
        request.hang_up();
        rig.wait_for_stat("tokens_in_use", 0)?;
    }
    Ok(())
}
