"""Audio: the processors that are asked, and with which feature extractors."""

from __future__ import annotations

from typing import Any

from .calls import SECONDS, attempt, audio_count, load, processor, record


def audios() -> list[dict[str, Any]]:
    from transformers import WhisperFeatureExtractor as Whisper

    whisper = {"sampling_rate": 16000, "return_attention_mask": True, "return_tensors": "pt"}
    cases: list[tuple[str, str, str, Any, int, dict[str, Any], dict[str, Any]]] = [
        ("qwen2_audio", "qwen2_audio", "Qwen2AudioProcessor", Whisper(feature_size=128), 16000,
         whisper, {}),
        ("qwen2_5_omni", "qwen2_5_omni", "Qwen2_5OmniProcessor",
         Whisper(feature_size=128, chunk_length=300), 16000, whisper, {}),
        ("qwen3_omni_moe", "qwen3_omni_moe", "Qwen3OmniMoeProcessor", Whisper(feature_size=128),
         16000, {**whisper, "padding": True, "truncation": False}, {}),
        ("qwen3_asr", "qwen3_asr", "Qwen3ASRProcessor", Whisper(feature_size=128), 16000,
         {**whisper, "padding": True, "truncation": False}, {}),
        ("audioflamingo3", "audioflamingo3", "AudioFlamingo3Processor", Whisper(feature_size=128),
         16000, whisper, {"max_audio_len": 600}),
        ("musicflamingo", "musicflamingo", "MusicFlamingoProcessor", Whisper(feature_size=128),
         16000, whisper, {"max_audio_len": 1200}),
        ("glmasr", "glmasr", "GlmAsrProcessor", Whisper(feature_size=128), 16000, whisper,
         {"max_audio_len": 655}),
        ("gemma4_unified", "gemma4_unified", "Gemma4UnifiedProcessor",
         load("gemma4_unified.feature_extraction_gemma4_unified",
              "Gemma4UnifiedAudioFeatureExtractor")(), 16000, {}, {}),
        ("gemma4", "gemma4", "Gemma4Processor",
         load("gemma4.feature_extraction_gemma4", "Gemma4AudioFeatureExtractor")(), 16000,
         {}, {}),
        ("dots3_note", "dots3_note", "Dots3NoteProcessor",
         load("dots3_note.feature_extraction_dots3_note", "Dots3NoteFeatureExtractor")(), 16000,
         {}, {}),
        ("muse_spark", "muse_spark", "MuseSparkProcessor",
         load("muse_spark.feature_extraction_muse_spark", "MuseSparkFeatureExtractor")(), 24000,
         {"return_tensors": "pt"}, {}),
        ("phi4_multimodal", "phi4_multimodal", "Phi4MultimodalProcessor",
         load("phi4_multimodal.feature_extraction_phi4_multimodal",
              "Phi4MultimodalFeatureExtractor")(), 16000, {"return_tensors": "pt"}, {}),
        ("omniasr", "omniasr", "OmniASRProcessor",
         load("omniasr.feature_extraction_omniasr", "OmniASRFeatureExtractor")(), 16000,
         {"return_tensors": "pt"},
         {"conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_stride": [5, 2, 2, 2, 2, 2, 2]}),
        ("moss_transcribe_diarize", "moss_transcribe_diarize", "MossTranscribeDiarizeProcessor",
         load("moss_transcribe_diarize.feature_extraction_moss_transcribe_diarize",
              "MossTranscribeDiarizeFeatureExtractor")(), 16000, {"return_tensors": "pt"},
         {"audio_merge_size": 4, "audio_tokens_per_second": 12.5,
          "time_marker_every_seconds": 2}),
        ("vibevoice_asr", "vibevoice_asr", "VibeVoiceAsrProcessor",
         load("vibevoice_acoustic_tokenizer.feature_extraction_vibevoice_acoustic_tokenizer",
              "VibeVoiceAcousticTokenizerFeatureExtractor")(), 24000,
         {"sampling_rate": 24000, "pad_to_multiple_of": 3200, "return_tensors": "pt"}, {}),
    ]  # fmt: skip
    out = []
    for kind, path, name, extractor, rate, kwargs, numbers in cases:
        for seconds in SECONDS:
            made = processor(path, name, **numbers)
            object.__setattr__(made, "feature_extractor", extractor)
            object.__setattr__(made, "audio_processor", extractor)
            total = attempt(f"{kind} {seconds}", audio_count, made, seconds, rate, **kwargs)
            if total is not None:
                out.append(record(kind, {}, total, audio_seconds=seconds))
    return out + nemotron_and_granite()


def nemotron_and_granite() -> list[dict[str, Any]]:
    """Two processors whose count needs no features: their own estimate is called."""
    made = processor("nemotron_h_omni", "NemotronH_Omni_Reasoning_V3Processor",
                     audio_hop_length=160, audio_subsampling_factor=8)  # fmt: skip
    extractor = load("granite_speech.feature_extraction_granite_speech",
                     "GraniteSpeechFeatureExtractor")  # fmt: skip
    bare = object.__new__(extractor)
    bare.melspec_kwargs = {"hop_length": 160}
    bare.projector_window_size, bare.projector_downsample_rate = 15, 5
    out = []
    for seconds in SECONDS:
        samples = round(seconds * 16000)
        total = made._estimate_audio_num_embeddings(samples) + 2
        out.append(record("nemotron_h_omni", {}, total, audio_seconds=seconds))
        total = bare._get_num_audio_features([samples])[0]
        config = {"window_size": 15, "downsample_rate": 5}
        out.append(record("granite_speech", config, total, audio_seconds=seconds))
    return out
