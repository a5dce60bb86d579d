import{a,b,c}from"./chunk-E6HB2HJ6.js";import"./chunk-3ILGMZIA.js";import"./chunk-SVPYO5R6.js";import"./chunk-MURUJCHA.js";import"./chunk-Q6PYSUUC.js";export{c as Heads,b as Train,a as joined};
