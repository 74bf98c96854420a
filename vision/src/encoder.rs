//! The encoder of a checkpoint with its processor.

use std::path::Path;

use engine::kernels::round::round;
use engine::{
    Chunk, ChunkGiven, ChunkMask, Engine, ExtraInputs, ModelSource, NativeEngine, NoProbe,
    OutputRows, Session, SessionOptions,
};
use images::{ImagePrompt, Picture, Processor};
use models::open::{OpenOptions, open};
use models::specs::Specs;
use registry::dtype::Dtype;
use registry::image::ImageLayout;

use crate::error::Error;
use crate::frames::{FrameRows, frames};

/// Settings of an encoder.
#[derive(Debug, Clone)]
pub struct EncoderOptions {
    /// The dtype that the encoder runs in.
    pub dtype: Dtype,
    /// Worker threads; all cores if not given.
    pub threads: Option<usize>,
}

impl Default for EncoderOptions {
    fn default() -> Self {
        Self { dtype: Dtype::F32, threads: None }
    }
}

/// An encoder that turns pictures into rows for a text model.
pub struct VisionEncoder {
    processor: Processor,
    session: Box<dyn Session>,
    layout: ImageLayout,
    /// Numbers of a patch.
    patch: usize,
}

/// The rows of one frame: a picture, or a tile of one.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedFrame {
    /// Rows in lines of blocks, one after another.
    pub rows: Vec<f32>,
    /// Numbers of a row.
    pub width: usize,
    /// Lines of rows.
    pub lines: usize,
    /// Columns of rows.
    pub columns: usize,
}

/// Frames of pictures, and the text that stands for each picture in a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedPictures {
    /// Frames in the order of the processor.
    pub frames: Vec<EncodedFrame>,
    /// The text of each picture's placeholder; empty if the checkpoint has no class that writes one.
    pub prompts: Vec<ImagePrompt>,
}

impl VisionEncoder {
    /// Opens the processor and the encoder of a checkpoint's folder.
    pub fn open(folder: &Path, specs: &mut Specs, options: &EncoderOptions) -> Result<Self, Error> {
        let processor = Processor::open(folder)?;
        let opened = open(folder, specs, &OpenOptions { encoder: true, ..OpenOptions::default() })?;
        let model = opened.target.model;
        let graph = &model.graph;
        let (Some(layout), Some(fed)) = (graph.encoder, graph.fed) else {
            return Err(Error::Pixels(format!("`{}` describes no encoder of images", model.name)));
        };
        let patch = graph.values[fed.value.0].shape.iter().product();
        let source = ModelSource { model: model.clone(), dir: &opened.target.dir };
        let session = SessionOptions {
            dtype: options.dtype,
            threads: options.threads,
            prefix: true,
            rows: layout.skip == 0,
            spans: layout.window.is_some(),
            ..SessionOptions::default()
        };
        let session = NativeEngine::new().open(&source, &session)?;
        Ok(Self { processor, session, layout, patch })
    }

    /// Returns the processor.
    pub fn processor(&self) -> &Processor {
        &self.processor
    }

    /// Turns pictures into rows, frame by frame in the order of the processor.
    pub fn encode(&mut self, pictures: &[Picture]) -> Result<EncodedPictures, Error> {
        let prepared = self.processor.prepare(pictures)?;
        let frames = frames(&prepared, &self.layout, self.patch)?;
        let frames =
            frames.iter().map(|frame| self.encode_frame(frame)).collect::<Result<_, _>>()?;
        Ok(EncodedPictures { frames, prompts: prepared.prompts })
    }

    fn encode_frame(&mut self, frame: &FrameRows) -> Result<EncodedFrame, Error> {
        let slot = self.session.open_slot();
        let count = frame.tokens.len();
        let chunk = Chunk { slot, tokens: &frame.tokens, rows: OutputRows::All };
        let mask = ChunkMask { prefix: count, documents: &[], spans: &frame.windows };
        let axes = frame.positions.each_ref().map(Vec::as_slice);
        let placed = if axes[0].is_empty() { &axes[..0] } else { &axes[..] };
        let given = ChunkGiven { positions: placed, ..ChunkGiven::default() };
        // The reference casts pixels to the dtype of its run.
        let mut patches = frame.patches.clone();
        round(self.session.dtype(), &mut patches);
        let inputs = ExtraInputs { hidden: &patches, masks: &[mask], given: &[given] };
        let encoded = self.session.step_with(&[chunk], inputs, &mut NoProbe);
        self.session.release(slot)?;
        let encoded = encoded?;
        let Some(output) = encoded.first() else {
            return Err(Error::Pixels("the encoder gave no rows".to_owned()));
        };
        let width = output.vocab;
        let mut rows = Vec::with_capacity(frame.blocks.len() * width);
        for block in &frame.blocks {
            // All rows of a block end equal.
            let row = self.layout.skip + block * self.layout.group();
            rows.extend_from_slice(&output.data[row * width..][..width]);
        }
        let (lines, columns) = frame.grid;
        Ok(EncodedFrame { rows, width, lines, columns })
    }
}

impl std::fmt::Debug for VisionEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VisionEncoder")
            .field("layout", &self.layout)
            .field("patch", &self.patch)
            .finish_non_exhaustive()
    }
}
