import sys, torch, warnings, shutil
sys.path.insert(0,'/work/wt/num9/tests')
import transformers; transformers.logging.set_verbosity_error(); transformers.utils.logging.disable_progress_bar()
import tiny_transformers as tt
from glassformer.formats import store
from glassformer.core.nn.model import inference
for name in ('Mixtral','MiniMaxM2','DeepseekV3','Glm4Moe','Qwen3Moe'):
    net=tt.build(name); d=f'/tmp/num9/mm/{name}'; shutil.rmtree(d,ignore_errors=True)
    net.to(torch.bfloat16).save_pretrained(d)
    net=type(net).from_pretrained(d,dtype=torch.bfloat16).eval()
    f=type(net).from_pretrained(d,dtype=torch.float32).eval()
    m,_=store.load(d)
    x=torch.randint(6,tt.VOCAB-1,(20,12))
    with torch.no_grad(), inference(m):
        a=m(x).logits.float(); b=net(x).logits.float(); c=f(x).logits
    q=lambda y: [round(float(v),4) for v in torch.quantile((y).abs().amax(-1).flatten(), torch.tensor([.5,.9,.99,1.]))]
    print(name,'ours-tf16',q(a-b),'ours-32',q(a-c),'tf16-32',q(b-c))
    e=[n for n,p in net.named_parameters() if p.dtype!=torch.bfloat16]+[n for n,p in net.named_buffers() if p.dtype!=torch.bfloat16]
    print(e[:3],[ (n,p.dtype) for n,p in m.named_parameters() if p.dtype!=torch.bfloat16][:3])
name='Marian'
net=tt.build(name); d='/tmp/num9/mm/M'; net.save_pretrained(d); h=type(net).from_pretrained(d).eval(); x=tt.inputs(name)
with torch.no_grad(): print('marian self', (net(**x).logits-h(**x).logits).abs().max())
