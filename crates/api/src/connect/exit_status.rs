//! The exit status of a command: the kubelet's message, and the Status for the client.

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::status::Status;
use serde_json::{Value, json};

/// Whether the final message of a protocol is a Status. Older protocols send text, and only after an error.
pub fn ends_with_status(protocol: &str) -> bool {
    matches!(protocol, "v4.channel.k8s.io" | "v5.channel.k8s.io")
}

/// The Status for a kubelet's final message.
pub fn from_final_message(protocol: &str, message: &[u8]) -> Vec<u8> {
    if message.is_empty() {
        return success();
    }
    if !ends_with_status(protocol) {
        return failure(&format!("error executing remote command: {}", String::from_utf8_lossy(message)));
    }
    let Ok(status) = serde_json::from_slice::<Value>(message) else {
        let message = quoted(&String::from_utf8_lossy(message));
        return failure(&format!("error stream protocol error: no Status in {message}"));
    };
    match (status["status"].as_str(), status["reason"].as_str()) {
        (Some("Success"), _) => success(),
        (Some("Failure"), Some("NonZeroExitCode")) => non_zero_exit(&status),
        (Some("Failure"), _) => failure(status["message"].as_str().unwrap_or_default()),
        _ => failure("error stream protocol error: unknown error"),
    }
}

fn non_zero_exit(status: &Value) -> Vec<u8> {
    let causes = status["details"]["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(cause) = causes.iter().find(|cause| cause["reason"] == "ExitCode") else {
        return failure("error stream protocol error: no ExitCode cause given");
    };
    let text = cause["message"].as_str().unwrap_or_default();
    let Ok(code) = text.parse::<u8>() else {
        return failure(&format!("error stream protocol error: invalid exit code value {}", quoted(text)));
    };
    let message =
        format!("command terminated with non-zero exit code: command terminated with exit code {code}");
    let cause = json!({"reason": "ExitCode", "message": code.to_string()});
    encode(&json!({
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "NonZeroExitCode",
        "details": {"causes": [cause]},
    }))
}

fn success() -> Vec<u8> {
    encode(&json!({"metadata": {}, "status": "Success"}))
}

/// The Status of a command whose result is unknown.
pub fn failure(message: &str) -> Vec<u8> {
    Status::internal(message).to_json()
}

fn encode(status: &Value) -> Vec<u8> {
    status.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_message_of_kubelet_becomes_status() {
        let v4 = "v4.channel.k8s.io";
        let exited = br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        let status_of = |protocol, body: &[u8]| -> Value {
            serde_json::from_slice(&from_final_message(protocol, body)).unwrap()
        };
        assert_eq!(status_of(v4, b"")["status"], "Success");
        assert_eq!(status_of(v4, br#"{"status":"Success"}"#)["status"], "Success");
        let status = status_of(v4, exited);
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0]["message"], "3");
        for (protocol, body, message) in [
            (v4, &br#"{"status":"Failure","message":"no such file"}"#[..], "no such file"),
            (v4, b"prose", "error stream protocol error: no Status in \"prose\""),
            (v4, b"{}", "error stream protocol error: unknown error"),
            ("v2.channel.k8s.io", b"it broke", "error executing remote command: it broke"),
        ] {
            let status = status_of(protocol, body);
            assert_eq!(status["reason"], "InternalError");
            assert_eq!(status["message"], format!("Internal error occurred: {message}"));
        }
    }
}
