//! A prompt with pictures, answered once.

use anyhow::{Context as _, Result, ensure};
use chat::{ChatRequest, OrderedJson, Template};
use engine::RowsSession;
use images::ImagePrompt;
use images::decode::{DecodeLimits, read};
use models::local_model::LocalModel;
use vision::{EncodedPictures, EncoderOptions, PicturePrompt, VisionEncoder};

use super::RunArgs;
use crate::token_io::TokenIo;
use crate::{CommandOutcome, specs};

/// Keys of a config that name the token of a row of an image.
const IMAGE_TOKENS: [&str; 3] = ["image_token_id", "image_token_index", "img_context_token_id"];

/// Answers a prompt about pictures, or continues its text.
pub(super) fn answer(args: &RunArgs, target: &LocalModel) -> Result<CommandOutcome> {
    ensure!(
        !target.is_gguf(),
        "--image needs the checkpoint of the model: a GGUF file has no encoder of images"
    );
    let text = args.text()?.unwrap_or_default();
    let encoded = encode(args, target)?;
    let template = if args.raw { None } else { Template::of_model(&target.dir).ok() };
    let text = match &template {
        Some(template) => rendered(args, template, &text)?,
        None => text,
    };
    let text = with_placeholders(&text, &encoded.prompts)?;
    let (tokenizer, session) = args.open_with_tokenizer(target)?;
    let prompt = tokenizer.encode(&text, template.is_none())?;
    ensure!(!prompt.is_empty(), "the prompt has no tokens");
    let token = target.config.count(&IMAGE_TOKENS).and_then(|token| u32::try_from(token).ok());
    let token = token.with_context(|| {
        format!(
            "config.json of `{}` has none of {}, the token of a row of an image",
            target.name,
            IMAGE_TOKENS.join(", ")
        )
    })?;
    let placed = PicturePrompt::new(&encoded.frames, &prompt, token, &target.model)?;
    let mut session = RowsSession::new(session);
    session.begin(Vec::new(), Some(placed.given));
    session.see_each_other(placed.prefix, placed.spans);
    args.write_answer(target, &mut session, &mut TokenIo::with(tokenizer), &prompt)
}

/// Runs the encoder of the checkpoint on the pictures.
fn encode(args: &RunArgs, target: &LocalModel) -> Result<EncodedPictures> {
    let limits = DecodeLimits::default();
    let pictures = args.images.iter().map(|file| {
        read(file, &limits).with_context(|| format!("cannot read the picture `{}`", file.display()))
    });
    let pictures = pictures.collect::<Result<Vec<_>>>()?;
    let mut known = specs::open(args.choice.specs.as_deref())?;
    let options = EncoderOptions { dtype: args.dtype(target), threads: args.threads };
    let mut encoder = VisionEncoder::open(&target.dir, &mut known, &options)?;
    Ok(encoder.encode(&pictures)?)
}

/// Renders a message of pictures and a text.
fn rendered(args: &RunArgs, template: &Template, text: &str) -> Result<String> {
    let mut parts: Vec<OrderedJson> =
        args.images.iter().map(|_| map_of(&[("type", "image")])).collect();
    parts.push(map_of(&[("type", "text"), ("text", text)]));
    let mut messages: Vec<OrderedJson> =
        args.system.iter().map(|text| map_of(&[("role", "system"), ("content", text)])).collect();
    messages.push(OrderedJson::Map(
        [
            ("role".to_owned(), OrderedJson::Text("user".to_owned())),
            ("content".to_owned(), OrderedJson::List(parts)),
        ]
        .into_iter()
        .collect(),
    ));
    let request = ChatRequest { messages, add_generation_prompt: true, ..ChatRequest::default() };
    Ok(template.render(&request)?)
}

/// Returns a map of texts.
fn map_of(pairs: &[(&str, &str)]) -> OrderedJson {
    let text = |word: &str| OrderedJson::Text(word.to_owned());
    OrderedJson::Map(pairs.iter().map(|(key, word)| ((*key).to_owned(), text(word))).collect())
}

/// Puts the text of each picture in the place of its placeholder. A text without placeholders gets them at its beginning.
fn with_placeholders(text: &str, prompts: &[ImagePrompt]) -> Result<String> {
    ensure!(
        !prompts.is_empty(),
        "the processor does not say what a prompt has in the place of a picture: `processor_class` of its files names a class \
         that has no rule in images/processors"
    );
    let placeholder = &prompts[0].placeholder;
    let count = text.matches(placeholder.as_str()).count();
    let text = if count == 0 {
        format!("{}{text}", placeholder.repeat(prompts.len()))
    } else {
        text.to_owned()
    };
    ensure!(
        count == 0 || count == prompts.len(),
        "the prompt has `{placeholder}` {count} times, and there are {} pictures",
        prompts.len()
    );
    let mut pieces = text.split(placeholder.as_str());
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for (prompt, piece) in prompts.iter().zip(pieces) {
        filled.push_str(&prompt.to_string());
        filled.push_str(piece);
    }
    Ok(filled)
}
