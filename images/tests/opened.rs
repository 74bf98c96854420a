//! Configurations in all their places, those that cannot be opened or run, and pictures that a class refuses.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use onboard_images::{BackEnd, OpenError, Picture, Processor, ProcessorOptions};

const LIMITED: &str = r#"{ "image_processor_type": "Qwen2VLImageProcessor", "size": { "shortest_edge": 4, "longest_edge": 9000000000000 } }"#;

fn opened(text: &str, options: ProcessorOptions) -> Result<Processor, OpenError> {
    let folder = tempfile::tempdir().unwrap();
    fs_err::write(folder.path().join("preprocessor_config.json"), text).unwrap();
    Processor::open_with(folder.path(), options)
}

fn grey(height: usize, width: usize) -> Picture {
    Picture::new(height, width, vec![90; 3 * height * width]).unwrap()
}

#[test]
fn unknown_classes_are_named_with_the_nearest() {
    let error = opened(
        r#"{ "image_processor_type": "Qwen2VLImageProcesor" }"#,
        ProcessorOptions::default(),
    );
    let text = error.unwrap_err().to_string();
    assert!(text.contains("`Qwen2VLImageProcesor`"), "{text}");
    assert!(text.contains("the nearest name is `Qwen2VLImageProcessor`"), "{text}");
}

#[test]
fn unknown_classes_of_whole_processors_can_be_left_out() {
    let text = r#"{ "image_processor_type": "CLIPImageProcessorFast", "processor_class": "Mine" }"#;
    let error = opened(text, ProcessorOptions::default()).unwrap_err();
    assert!(matches!(error, OpenError::UnknownPrompt { .. }), "{error}");
    let options = ProcessorOptions { pixels_only: true, ..ProcessorOptions::default() };
    let prepared = opened(text, options).unwrap().prepare(&[grey(30, 40)]).unwrap();
    assert_eq!(prepared.outputs["pixel_values"].shape, [1, 3, 224, 224]);
    assert!(prepared.prompts.is_empty());
}

#[test]
fn folders_and_values_of_no_use_are_named() {
    let error = Processor::open(Path::new("/nowhere")).unwrap_err().to_string();
    assert!(error.contains("preprocessor_config.json"), "{error}");
    let text = r#"{ "image_processor_type": "CLIPImageProcessor", "size": "large" }"#;
    let error = opened(text, ProcessorOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`size`") && error.contains("expected a size"), "{error}");
    let options = ProcessorOptions { back_end: BackEnd::Pil, ..ProcessorOptions::default() };
    let text = r#"{ "image_processor_type": "Llama4ImageProcessor" }"#;
    assert!(matches!(opened(text, options), Err(OpenError::NoBackEnd { .. })));
}

#[test]
fn unknown_keys_are_listed() {
    let text = r#"{ "image_processor_type": "CLIPImageProcessor", "do_magic": true }"#;
    assert_eq!(opened(text, ProcessorOptions::default()).unwrap().unread(), ["do_magic"]);
}

#[test]
fn pictures_beyond_the_rules_are_refused() {
    let processor = opened(LIMITED, ProcessorOptions::default()).unwrap();
    let error = processor.prepare(&[grey(2, 401)]).unwrap_err().to_string();
    assert!(error.contains("more than 200 times"), "{error}");
    let text =
        r#"{ "image_processor_type": "CLIPImageProcessor", "size": 100000, "crop_size": 224 }"#;
    let error = opened(text, ProcessorOptions::default()).unwrap().prepare(&[grey(3, 4)]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("a frame cannot have 100000 x 133333 pixels"), "{error}");
    let text = r#"{ "image_processor_type": "CLIPImageProcessor", "resample": 4 }"#;
    let error = opened(text, ProcessorOptions::default()).unwrap().prepare(&[grey(3, 4)]);
    assert!(error.unwrap_err().to_string().contains("torchvision has no filter `box`"));
}

#[test]
fn a_whole_processor_may_hold_the_image_processor() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"{
        "processor_class": "LlavaProcessor",
        "patch_size": 14,
        "image_token": "<picture>",
        "image_processor": { "image_processor_type": "CLIPImageProcessorFast", "crop_size": 56, "size": 56 }
    }"#;
    fs_err::write(folder.path().join("processor_config.json"), text).unwrap();
    let processor = Processor::open(folder.path()).unwrap();
    assert_eq!(processor.kind(), "clip");
    let prepared = processor.prepare(&[grey(30, 40), grey(80, 9)]).unwrap();
    assert_eq!(prepared.outputs["pixel_values"].shape, [2, 3, 56, 56]);
    assert_eq!(prepared.prompts[1].placeholder, "<picture>");
    assert_eq!(prepared.prompts[1].count("<picture>"), 16);
    assert!(processor.prepare(&[]).unwrap().outputs.is_empty());
}
