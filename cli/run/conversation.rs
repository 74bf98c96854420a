//! Conversations through the chat template of a model.

use std::io::{BufRead as _, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use chat::{ChatRequest, OrderedJson, Template};
use engine::sample::Sampler;
use engine::{Session, SlotId};
use models::local_model::LocalModel;
use serde_json::json;
use serve::{ServedTokenizer, TextStream};

use super::generation::{GeneratedTokens, GenerationEnd, Limits, generate};
use super::{MOST, RunArgs};
use crate::sampling::SamplingDefaults;
use crate::{CommandOutcome, interrupt, term};

/// Conversation with what the session holds of it.
struct Conversation<'a> {
    args: &'a RunArgs,
    target: &'a LocalModel,
    template: &'a Template,
    codec: Arc<dyn ServedTokenizer>,
    ends: Vec<u32>,
    session: Box<dyn Session>,
    slot: SlotId,
    sampler: Sampler,
    messages: Vec<OrderedJson>,
    /// Tokens that the slot holds.
    held: Vec<u32>,
}

/// Answer of the model.
struct Answer {
    text: String,
    prompt: Vec<u32>,
    generation: GeneratedTokens,
}

/// Commands of a conversation.
const HELP: &str = "/clear forgets what was said, /help prints this, /exit (/quit, /bye) or the end of the input ends; Ctrl-C ends an answer";

/// True for a line that is one word behind a slash. Paths have more slashes, and questions more words.
fn is_command(line: &str) -> bool {
    let word = line.trim_end().strip_prefix('/');
    word.is_some_and(|word| !word.is_empty() && word.chars().all(char::is_alphabetic))
}

/// Answers one prompt, or a line of standard input after the other.
pub(super) fn hold(
    args: &RunArgs,
    target: &LocalModel,
    template: &Template,
) -> Result<CommandOutcome> {
    let text = args.text()?;
    let (tokenizer, mut session) = args.open_with_tokenizer(target)?;
    let mut ends = tokenizer.ends(target.home());
    let defaults = SamplingDefaults::of(target);
    if let Some(penalty) = defaults.repetition_penalty {
        term::note(&format!(
            "note: the model recommends a repetition penalty of {penalty:?}, which is not applied"
        ));
    }
    let codec: Arc<dyn ServedTokenizer> = Arc::new(tokenizer);
    ends.extend(turn_end(template, codec.as_ref()));
    let slot = session.open_slot();
    let sampler = args.sampler(defaults);
    let messages = Vec::new();
    let held = Vec::new();
    let mut conversation = Conversation {
        args,
        target,
        template,
        codec,
        ends,
        session,
        slot,
        sampler,
        messages,
        held,
    };
    conversation.begin();
    match text {
        Some(text) => {
            let answer = conversation.answer(&text)?;
            conversation.finish(&answer)?;
        }
        None => conversation.answer_lines()?,
    }
    Ok(CommandOutcome::Ok)
}

impl Conversation<'_> {
    /// Forgets all messages but that of the system.
    fn begin(&mut self) {
        let system = self.args.system.iter();
        self.messages = system.map(|text| message("system", text)).collect();
    }

    /// Answers each line of standard input.
    fn answer_lines(&mut self) -> Result<()> {
        let asks = std::io::stdin().is_terminal();
        if asks {
            term::note(HELP);
        }
        loop {
            if asks {
                term::prompt(">>> ");
            }
            let Some(line) = next_line()? else { break };
            // A space before a word makes it a message.
            match line.trim_end() {
                "" => {}
                "/exit" | "/bye" | "/quit" => break,
                "/clear" => self.begin(),
                "/help" | "/?" => term::note(HELP),
                word if is_command(&line) => {
                    term::note(&format!(
                        "`{word}` is no command; to send it as a message, write a space before it\n{HELP}"
                    ));
                }
                text => {
                    let answer = self.answer(text.trim_start())?;
                    self.finish(&answer)?;
                }
            }
        }
        if asks {
            term::note("");
        }
        Ok(())
    }

    /// Answers a message, and keeps both.
    fn answer(&mut self, text: &str) -> Result<Answer> {
        self.messages.push(message("user", text));
        let request = ChatRequest {
            messages: self.messages.clone(),
            add_generation_prompt: true,
            ..ChatRequest::default()
        };
        let rendered = self.template.render(&request)?;
        let prompt = self.codec.encode(&rendered, false)?;
        ensure!(!prompt.is_empty(), "the chat template makes no tokens of the conversation");
        let fresh = self.rewind(&prompt)?;
        let context = self.target.model.context;
        let room = context.map_or(usize::MAX, |context| context.saturating_sub(prompt.len()));
        ensure!(
            room > 0,
            "the conversation has {} tokens, and the model handles {}; begin anew with /clear",
            prompt.len(),
            context.unwrap_or(usize::MAX)
        );
        let codec = Some(Arc::clone(&self.codec));
        let mut stream = TextStream::new(codec, &prompt, Vec::new(), true);
        let mut answer_text = String::new();
        let silent = self.args.json;
        let stop = Arc::new(AtomicBool::new(false));
        let stop_on_signal = Arc::clone(&stop);
        interrupt::on_first(move || stop_on_signal.store(true, Ordering::SeqCst));
        let generation = generate(
            self.session.as_mut(),
            self.slot,
            &prompt[fresh..],
            &mut self.sampler,
            Limits {
                asked: self.args.n.unwrap_or(usize::MAX),
                room,
                ends: &self.ends,
                stop: Some(&stop),
            },
            |token| {
                let piece = stream.push(token);
                answer_text.push_str(&piece);
                if silent { Ok(()) } else { Ok(term::stream(&piece)?) }
            },
        );
        interrupt::forget();
        let generation = generation?;
        let tail = stream.finish();
        answer_text.push_str(&tail);
        if !silent {
            term::print_data(&tail)?;
        }
        // The last token was not fed, unless a token after it ended the answer or the user did.
        let fed = match generation.ended {
            GenerationEnd::EndToken | GenerationEnd::Stopped => generation.tokens.len(),
            GenerationEnd::Length | GenerationEnd::Context => {
                generation.tokens.len().saturating_sub(1)
            }
        };
        self.held.clone_from(&prompt);
        self.held.extend(&generation.tokens[..fed]);
        self.messages.push(message("assistant", &answer_text));
        Ok(Answer { text: answer_text, prompt, generation })
    }

    /// Takes the slot back to what it has in common with a prompt. Returns the number of tokens that it then holds,
    /// which is less than the prompt has.
    fn rewind(&mut self, prompt: &[u32]) -> Result<usize> {
        let same = self.held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let same = same.min(prompt.len() - 1);
        if same == self.held.len() {
            return Ok(same);
        }
        // States that cannot be taken back are computed anew.
        if same > 0 && self.session.truncate(self.slot, same).is_ok() {
            return Ok(same);
        }
        self.session.release(self.slot)?;
        self.slot = self.session.open_slot();
        Ok(0)
    }

    /// Prints an answer as JSON, if that was asked for, and why it is not whole.
    fn finish(&self, answer: &Answer) -> Result<()> {
        let ended = answer.generation.ended;
        if self.args.json {
            let result = json!({
                "schema": "onboard-run/1",
                "model": self.target.name,
                "dtype": self.args.dtype(self.target).name(),
                "prompt_tokens": answer.prompt,
                "tokens": answer.generation.tokens,
                "text": answer.text,
                "ended": ended.word(),
            });
            term::print_data(&serde_json::to_string_pretty(&result)?)?;
        } else if ended == GenerationEnd::Context {
            term::note("note: the answer ends where the context of the model does");
        }
        Ok(())
    }
}

fn message(role: &str, text: &str) -> OrderedJson {
    let pairs = [("role", role), ("content", text)];
    OrderedJson::Map(
        pairs
            .into_iter()
            .map(|(key, text): (&str, &str)| (key.to_owned(), OrderedJson::Text(text.to_owned())))
            .collect(),
    )
}

/// Reads a line of standard input; none at its end.
fn next_line() -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let mut input = std::io::Read::take(std::io::stdin().lock(), MOST + 1);
    input.read_until(b'\n', &mut bytes).context("cannot read standard input")?;
    ensure!(
        bytes.len() as u64 <= MOST,
        "a line of standard input has more than {MOST} bytes, the most of a message"
    );
    if bytes.is_empty() {
        return Ok(None);
    }
    String::from_utf8(bytes).map(Some).context("standard input is not UTF-8")
}

/// Returns the token that the template puts behind an answer, if it is a special one: some files name another token
/// as the end of texts.
fn turn_end(template: &Template, codec: &dyn ServedTokenizer) -> Option<u32> {
    const MARK: &str = "mark";
    let messages = vec![message("user", "question"), message("assistant", MARK)];
    let request = ChatRequest { messages, ..ChatRequest::default() };
    let rendered = template.render(&request).ok()?;
    let (_, behind) = rendered.rsplit_once(MARK)?;
    let first = *codec.encode(behind, false).ok()?.first()?;
    // A special token has no text.
    let text = codec.decode(&[first], true).ok()?;
    (text.is_empty() && !codec.decode(&[first], false).ok()?.is_empty()).then_some(first)
}
