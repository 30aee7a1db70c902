"""Names of metrics of scikit-learn, torchmetrics, Keras and Hugging Face, by direction."""

from cflower.metric import named

LOWER = named("""
log_loss brier_score_loss hamming_loss hinge_loss zero_one_loss max_error mean_absolute_error
mean_squared_error mean_squared_log_error median_absolute_error root_mean_squared_error
mean_absolute_percentage_error mean_pinball_loss mean_poisson_deviance mean_tweedie_deviance
coverage_error davies_bouldin_score
BrierScore CalibrationError HammingDistance HingeLoss KLDivergence LogCoshError MeanSquaredError
SymmetricMeanAbsolutePercentageError WeightedMeanAbsolutePercentageError TweedieDevianceScore
FrechetInceptionDistance fid KID LPIPS Perplexity WordErrorRate CharErrorRate MatchErrorRate
WordInfoLost EditDistance RetrievalFallOut EER
binary_crossentropy categorical_crossentropy SparseCategoricalCrossentropy kl_divergence poisson
logcosh squared_hinge false_negatives false_positives huber
wer cer ter perplexity mase mahalanobis smape brier_score eval_runtime eval_loss
cross_entropy val_ce bce ece deviance hamming_distance eval_kl latency rmse mse mae nll msle medae
wape rmsd neg_log_likelihood negative_log_likelihood eer fpr hinge val_nrmse test-rmse valMAE
train_loss test_loss loss_epoch eval/loss error_rate val_bpc seconds_per_step false_negative_rate
training_time ms l1_error
""") | {"log loss"}

HIGHER = named("""
accuracy_score balanced_accuracy_score top_k_accuracy_score average_precision_score f1_score
fbeta_score jaccard_score roc_auc_score matthews_corrcoef cohen_kappa_score ndcg_score r2_score
explained_variance_score d2_absolute_error_score d2_log_loss_score d2_pinball_score
neg_log_loss neg_mean_squared_error test_neg_root_mean_squared_error neg_brier_score
adjusted_rand_score v_measure_score silhouette_score adjusted_mutual_info_score
label_ranking_average_precision_score
MulticlassAccuracy AUROC CohenKappa Dice F1Score JaccardIndex MatthewsCorrCoef MeanIoU mIoU
PearsonCorrCoef R2Score SpearmanCorrCoef StructuralSimilarityIndexMeasure PSNR SNR RetrievalMRR
RetrievalNormalizedDCG WordInfoPreserved PanopticQuality Specificity mAP map50 ConcordanceCorrCoef
binary_accuracy sparse_top_k_categorical_accuracy AUC mean_io_u true_positives cosine_similarity
precision_at_recall
bleu sacrebleu rouge1 rougeL meteor exact_match chrf mauve comet eval_f1 squad_em
eval_samples_per_second
accuracy acc val_acc f1 auc top1 top5 acc@1 eval_accuracy test_f1-score-effusion rocAUC
answer_f1 recall_macro train_accuracy log_likelihood negative_predictive_value true_negative_rate
hit_at_10 fps throughput r_squared c_index win_rate success_rate
""")
UNKNOWN = [
    "power",
    "lossless_ratio",
    "mu",
    "eval_x",
    "accumulated",
    "sauce",
    "entropy",
    "n_clients",
]
