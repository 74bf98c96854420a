//! Formats a launch as a Docker Compose file, and as Kubernetes objects.
//!
//! Both are YAML; strings are written as JSON, which is valid YAML.

use std::fmt::Write as _;

use registry::scalar::Scalar;

use super::command;
use super::error::LaunchError;
use super::plan::PlannedLaunch;
use super::units::model_path;

/// Folder of the model inside a container.
const INSIDE: &str = "/model";

/// Content that Compose and Kubernetes files share.
struct Container {
    name: String,
    image: String,
    words: Vec<String>,
    environment: Vec<(String, String)>,
    port: u16,
    gpus: i64,
    /// Host path of the folder or file, for a local model.
    outside: Option<String>,
}

impl Container {
    fn of(launched: &PlannedLaunch) -> Result<Self, LaunchError> {
        let sheet = &launched.sheet;
        let engine = &sheet.engine;
        let image = sheet.image.as_ref();
        let image = image.ok_or_else(|| LaunchError::Image { engine: engine.clone() })?;
        let port = sheet.port.ok_or_else(|| LaunchError::Port { engine: engine.clone() })?;
        let outside = launched.local.then(|| model_path(launched));
        let inside = outside.as_ref().map_or(launched.model.as_str(), |_| INSIDE);
        let mut words = command::words(launched, inside);
        // Servers listen on the loopback address by default, which is unreachable from outside.
        let is_chosen = launched.outcome.settings.iter().any(|chosen| chosen.name == "host");
        if let Some(host) = sheet.settings.get("host").filter(|_| !is_chosen) {
            words.extend(host.words(&Scalar::Str("0.0.0.0".to_owned())));
        }
        let planes = launched.outcome.settings.iter().find(|chosen| chosen.name == "pp");
        let pp = planes.and_then(|chosen| chosen.value.as_usize()).unwrap_or(1) as i64;
        Ok(Self {
            name: label(&format!("{}-{}", sheet.engine, launched.model)),
            image: image.replace("{}", &launched.version.name),
            words,
            environment: command::environment(launched),
            port,
            gpus: launched.asked.tp.saturating_mul(pp),
            outside,
        })
    }
}

/// Formats a Docker Compose file.
pub fn compose(launched: &PlannedLaunch) -> Result<String, LaunchError> {
    let container = Container::of(launched)?;
    let mut text =
        format!("services:\n  {}:\n    image: {}\n", container.name, quoted(&container.image));
    let _ = writeln!(text, "    entrypoint: []\n    command: {}", list(&container.words));
    if !container.environment.is_empty() {
        text.push_str("    environment:\n");
        for (name, value) in &container.environment {
            let _ = writeln!(text, "      {name}: {}", quoted(value));
        }
    }
    let _ = writeln!(text, "    ports:\n      - {}", quoted(&format!("{0}:{0}", container.port)));
    match &container.outside {
        Some(path) => {
            let mount = format!("{path}:{INSIDE}:ro");
            let _ = writeln!(text, "    volumes:\n      - {}", quoted(&mount));
        }
        None => text
            .push_str("    volumes:\n      - \"~/.cache/huggingface:/root/.cache/huggingface\"\n"),
    }
    let _ = writeln!(
        text,
        "    shm_size: \"16gb\"\n    deploy:\n      resources:\n        reservations:\n          devices:\n            \
         - driver: nvidia\n              count: {}\n              capabilities: [gpu]",
        container.gpus
    );
    Ok(text)
}

/// Formats a deployment and a service of Kubernetes.
pub fn kubernetes(launched: &PlannedLaunch) -> Result<String, LaunchError> {
    let container = Container::of(launched)?;
    let name = &container.name;
    let mut text = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\nspec:\n  replicas: 1\n  selector:\n    \
         matchLabels: {{ app: {name} }}\n  template:\n    metadata:\n      labels: {{ app: {name} }}\n    spec:\n      \
         containers:\n        - name: engine\n          image: {}\n          command: {}\n",
        quoted(&container.image),
        list(&container.words)
    );
    if !container.environment.is_empty() {
        text.push_str("          env:\n");
        for (key, value) in &container.environment {
            let _ = writeln!(text, "            - {{ name: {key}, value: {} }}", quoted(value));
        }
    }
    let port = container.port;
    let _ = writeln!(
        text,
        "          ports: [{{ containerPort: {port} }}]\n          readinessProbe:\n            httpGet: {{ path: /health, port: {port} }}\n            \
         periodSeconds: 10\n            failureThreshold: 180\n          resources:\n            limits: {{ nvidia.com/gpu: {} }}\n          \
         volumeMounts:\n            - {{ name: shm, mountPath: /dev/shm }}",
        container.gpus
    );
    if container.outside.is_some() {
        let _ =
            writeln!(text, "            - {{ name: model, mountPath: {INSIDE}, readOnly: true }}");
    }
    text.push_str(
        "      volumes:\n        - { name: shm, emptyDir: { medium: Memory, sizeLimit: 16Gi } }\n",
    );
    if let Some(path) = &container.outside {
        let _ = writeln!(
            text,
            "        - {{ name: model, hostPath: {{ path: {} }} }}",
            serde_json::Value::from(path.as_str())
        );
    }
    let _ = writeln!(
        text,
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  selector: {{ app: {name} }}\n  \
         ports: [{{ port: {port}, targetPort: {port} }}]"
    );
    Ok(text)
}

/// Returns a valid DNS label: lower-case letters, digits and dashes, at most 63 of them.
fn label(text: &str) -> String {
    let mut name: String = text
        .chars()
        .map(|c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect();
    while name.contains("--") {
        name = name.replace("--", "-");
    }
    name.truncate(63);
    name.trim_matches('-').to_owned()
}

fn quoted(text: &str) -> String {
    // Compose replaces `$NAME`, even in quotes.
    serde_json::Value::from(text.replace('$', "$$")).to_string()
}

fn list(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("[{}]", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_names_of_dns() {
        assert_eq!(label("vllm-Some/Model_1.2B"), "vllm-some-model-1-2b");
        assert_eq!(label(&"x".repeat(80)).len(), 63);
        assert_eq!(label("../a b/"), "a-b");
        assert_eq!(quoted("a\"$b"), r#""a\"$$b""#);
    }
}
